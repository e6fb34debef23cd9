"""Compute a year in twelve mapped tasks; all of it appears at once. No Spark and no Celery."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from lockgate.operators import AuditOperator, JobAbortOperator, JobCommitOperator, JobSetupOperator

DESTINATION = "s3://lake/daily-totals"


@task.lockgate  # like @task, with Airflow's connections; `job` is given a handle and gets the job
def months(job, year):
    """Freeze the list of tasks, without which a commit would not miss a month, and return the months."""
    from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask

    names = [f"{year}-{month:02d}" for month in range(1, 13)]
    job.expect([ExpectedTask(task_id=name) for name in names])
    return names


@task.lockgate(retries=3, max_active_tis_per_dagrun=4)
def write_month(job, month, ti=None):
    """Write one month as a Parquet file; a retry takes the place of the try before it."""
    import pandas as pd

    days = pd.period_range(month, periods=1, freq="M")[0]
    totals = pd.DataFrame({"day": pd.date_range(days.start_time, periods=days.days_in_month), "total": 0.0})
    with (
        job.attempt(month, try_number=ti.try_number) as attempt,
        attempt.open(f"month={month}/totals.parquet") as file,
    ):
        totals.to_parquet(file, index=False)


with DAG(
    "year_backfill",
    description=__doc__,
    schedule=None,
    tags=["lockgate"],
    default_args={"restricted": True},  # the form may name only destinations that the settings allow
    params={
        "year": Param(2025, type="integer", minimum=1970, title="Year"),
        "destination": Param(DESTINATION, type="string", minLength=1, title="Destination"),
    },
) as dag:
    setup = JobSetupOperator(
        task_id="setup",
        destination=dag.param("destination"),
        mode="replace",
        scope="partitions",
        committer="magic",
        audit=True,
    )
    listed = months(setup.output, dag.param("year"))
    written = write_month.partial(job=setup.output).expand(month=listed)
    audit = AuditOperator(
        task_id="audit",
        job=setup.output,
        engine="statistics",
        suite={
            "name": "a year",
            "expectations": [
                {
                    "type": "expect_table_row_count_to_be_between",
                    "kwargs": {"min_value": 365, "max_value": 366},
                },
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "total"}},
            ],
        },
    )
    commit = JobCommitOperator(task_id="commit", job=setup.output)
    abort = JobAbortOperator(task_id="abort", job=setup.output).as_teardown(setups=setup)

    setup >> listed >> written >> audit >> commit >> abort
