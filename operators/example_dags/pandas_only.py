"""Write a data set with pandas alone: no Spark, no Celery. Its commit starts `asset_scheduled`."""

from __future__ import annotations

from airflow.sdk import DAG, AssetAlias, Param, task

from lockgate.operators import AuditOperator, JobAbortOperator, JobCommitOperator, JobSetupOperator


@task.lockgate  # like @task, with Airflow's connections; `job` is given a handle and gets the job
def write(job, ti=None):
    """Write one file; replace the frame by your own, or by what dbt exports."""
    import pandas as pd

    frame = pd.DataFrame({"order_id": [1, 2, 3], "total": [9.5, 3.0, 12.25]})
    with (
        job.attempt("orders", try_number=ti.try_number) as attempt,
        attempt.open("orders.parquet") as file,
    ):
        frame.to_parquet(file, index=False)


with DAG(
    "pandas_only",
    description=__doc__,
    schedule=None,
    tags=["lockgate"],
    default_args={"restricted": True},  # the form may name only destinations that the settings allow
    params={"destination": Param("s3://lake/orders", type="string", minLength=1, title="Destination")},
) as dag:
    setup = JobSetupOperator(
        task_id="setup", destination=dag.param("destination"), committer="magic", audit=True
    )
    written = write(setup.output)
    audit = AuditOperator(
        task_id="audit",
        job=setup.output,
        engine="statistics",
        suite={
            "name": "orders",
            "expectations": [
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "order_id"}},
                {"type": "expect_column_min_to_be_between", "kwargs": {"column": "total", "min_value": 0}},
            ],
        },
    )
    commit = JobCommitOperator(task_id="commit", job=setup.output, outlets=[AssetAlias("lockgate_orders")])
    abort = JobAbortOperator(task_id="abort", job=setup.output).as_teardown(setups=setup)

    setup >> written >> audit >> commit >> abort
