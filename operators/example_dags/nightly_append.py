"""Append one day of orders every night with Spark."""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from lockgate.operators import (
    AuditOperator,
    JobAbortOperator,
    JobCommitOperator,
    JobSetupOperator,
    SparkWriteOperator,
    TaskCommitOperator,
)

DESTINATION = "s3://lake/orders"


def orders(spark, day):
    """Return the orders of a day; runs in the Spark process."""
    return spark.read.json(f"s3a://raw/orders/{day}").dropDuplicates(["order_id"])


with DAG("nightly_append", description=__doc__, schedule="@daily", catchup=False, tags=["lockgate"]) as dag:
    setup = JobSetupOperator(task_id="setup", destination=DESTINATION, audit=True)
    write = SparkWriteOperator(
        task_id="write",
        job=setup.output,
        python_callable=orders,
        op_kwargs={"day": "{{ dag_run.run_after | ds }}"},
        reads_s3=True,  # no argument names the s3a:// source
    )
    tasks = TaskCommitOperator.partial(task_id="tasks", job=write.output["job"]).expand(task_ids=write.output)
    audit = AuditOperator(task_id="audit", job=write.output["job"])
    commit = JobCommitOperator(
        task_id="commit", job=write.output["job"], outlets=[Asset("orders", DESTINATION)]
    )
    abort = JobAbortOperator(task_id="abort", job=setup.output).as_teardown(setups=setup)

    setup >> write >> tasks >> audit >> commit >> abort
