"""Replace the partitions of the days that a run computes, and no others."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from lockgate.operators import (
    JobAbortOperator,
    JobCommitOperator,
    JobSetupOperator,
    SparkWriteOperator,
    TaskCommitOperator,
)


def corrected(spark, first, last):
    """Return the orders of some days again; runs in the Spark process."""
    return spark.read.parquet("s3a://raw/corrections").where(f"day between '{first}' and '{last}'")


with DAG(
    "partition_overwrite",
    description=__doc__,
    schedule=None,
    tags=["lockgate"],
    params={
        "first": Param(type="string", format="date", title="First day"),
        "last": Param(type="string", format="date", title="Last day"),
    },
) as dag:
    setup = JobSetupOperator(
        task_id="setup", destination="s3://lake/orders-by-day", mode="replace", scope="partitions"
    )
    write = SparkWriteOperator(
        task_id="write",
        job=setup.output,
        python_callable=corrected,
        op_kwargs={"first": dag.param("first"), "last": dag.param("last")},
        partition_by=["day"],
        reads_s3=True,  # no argument names the s3a:// source
    )
    tasks = TaskCommitOperator.partial(task_id="tasks", job=write.output["job"]).expand(task_ids=write.output)
    commit = JobCommitOperator(task_id="commit", job=write.output["job"])
    abort = JobAbortOperator(task_id="abort", job=setup.output).as_teardown(setups=setup)

    setup >> write >> tasks >> commit >> abort
