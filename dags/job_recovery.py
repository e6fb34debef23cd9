"""Finish or abort jobs whose driver is gone."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param

from lockgate.operators import JobAnnounceOperator
from lockgate.operators.recovery import JobRecoveryOperator, recovery_interval

with DAG(
    "job_recovery",
    description=__doc__,
    schedule=recovery_interval(),
    catchup=False,
    max_active_runs=1,
    tags=["lockgate"],
    default_args={"restricted": True},  # the form may name only destinations that the settings allow
    params={
        "destinations": Param(
            None,
            type=["null", "string"],
            title="Destinations",
            description="URLs or paths, separated by commas. Empty: all in the journal, and those of "
            "LOCKGATE_DESTINATIONS or the Airflow Variable lockgate_destinations.",
        ),
        "destination": Param(
            None,
            type=["null", "string"],
            title="Destination of one job",
            description="s3://bucket/prefix, file:///directory or a path.",
            section="One job",
        ),
        "job_id": Param(
            None,
            type=["null", "string"],
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$",
            title="Job",
            description="Id of the job, such as sales-g1. Without a destination the journal finds it.",
            section="One job",
        ),
        "abort_reason": Param(
            None,
            type=["null", "string"],
            title="Abort this job, because",
            description="Empty: recover it. With a reason the job is aborted and its data deleted, also if "
            "its driver is alive, unless its commit is decided.",
            section="One job",
        ),
        "dry_run": Param(False, type="boolean", title="Only report what would be done"),
    },
    doc_md="""
Runs every five minutes (`LOCKGATE_RECOVERY_MINUTES`). Finishes decided jobs, and aborts or resumes undecided
jobs whose lease has expired; running and suspended jobs are left alone. Concurrent runs are harmless. A table
in the log lists what was done with each job. Fails only if an operator must act: a job's records contradict
each other, or a destination cannot be reached. **announce** then emits the Asset events of jobs whose commit
task was killed after the decision, so that DAGs scheduled by these Assets start. To recover one job, give its
**destination** and **job**; with a reason to abort it is aborted instead.
""",
) as dag:
    one_job = {"destination": dag.param("destination"), "job_id": dag.param("job_id")}
    recover = JobRecoveryOperator(
        task_id="recover",
        destinations=dag.param("destinations"),
        report_only=dag.param("dry_run"),
        abort_reason=dag.param("abort_reason"),
        **one_job,
    )
    # A teardown, because a failed task emits no events: also when one of many jobs needs an operator.
    announce = JobAnnounceOperator(
        task_id="announce",
        destinations=dag.param("destinations"),
        report_only=dag.param("dry_run"),
        **one_job,
    ).as_teardown(on_failure_fail_dagrun=True)

    recover >> announce
    recover >> EmptyOperator(task_id="recovered")  # else only the teardown's state would be that of the run
