"""Pass a job between Airflow tasks: a small dictionary in XCom, by which each task attaches to the job.

No process holds the job between two tasks: a step that ends before the decision suspends it, with a deadline
until which recovery leaves it alone. Source: commit protocol, "Set-up" and "Identity".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from airflow.sdk.exceptions import AirflowFailException

from lockgate.operators.dag_run.parameters import from_template
from lockgate.storage_core.concurrency import no_progress
from lockgate.storage_core.errors import FencedError, InvalidInputError, LockgateError
from lockgate.storage_core.ids import JobAttemptId, JobId, JobName, job_name
from lockgate.storage_core.settings import load_settings
from lockgate.workers.session_token import HEADER, extract, tokens

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.records.job_record import JobOrigin
    from lockgate.storage_core.concurrency import Progress


class NamedJob(TypedDict):
    """A job, and a run of its driver."""

    destination: str
    job_id: str
    job_attempt: str


class JobHandle(NamedJob, total=False):
    """A job as one task passes it to the next: small, JSON, without secrets.

    Attributes:
        lockgate_at_least: Session token of the task, if there is a journal.
    """

    lockgate_at_least: str


def handle_of(job: Job) -> JobHandle:
    """Return the handle by which the next task attaches to this job and reads what this task has written."""
    handle = JobHandle(destination=job.destination, job_id=job.job_id, job_attempt=job.job_attempt)
    if token := tokens().get(HEADER):
        handle["lockgate_at_least"] = token
    return handle


def check_handle(handle: object) -> JobHandle:
    """Return a value from XCom or a user's DAG as a handle; also from the text of a template.

    Raises:
        InvalidInputError: It is not a handle, most often because the set-up task did not run.
    """
    handle = from_template(handle)
    if not isinstance(handle, dict) or not JobHandle.__required_keys__ <= handle.keys():
        raise InvalidInputError(
            f"job={str(handle)[:120]!r} is not a job handle: pass the output of JobSetupOperator, "
            '`job=setup.output`, or of SparkWriteOperator, `job=write.output["job"]`'
        )
    return JobHandle(
        destination=str(handle["destination"]),
        job_id=str(handle["job_id"]),
        job_attempt=str(handle["job_attempt"]),
        lockgate_at_least=str(handle.get("lockgate_at_least", "")),
    )


def attach(
    handle: object, *, job_attempt: JobAttemptId | None = None, progress: Progress = no_progress
) -> Job:
    """Return the job that a handle names.

    Args:
        handle: Handle that an earlier task returned.
        job_attempt: A new run of the driver; None: the run that the handle names.
        progress: Called as a commit advances.

    Raises:
        InvalidInputError: It is not a handle.
        ObjectNotFoundError: The job no longer exists.
    """
    from lockgate.storage_core.commit.open_or_attach import attach_job

    known = check_handle(handle)
    extract({HEADER: known["lockgate_at_least"]})
    return attach_job(
        known["destination"],
        JobId(known["job_id"]),
        job_attempt=job_attempt or JobAttemptId(known["job_attempt"]),
        progress=progress,
    )


def run_name(context: Context, write_name: str) -> JobName:
    """Return the job's name, the same for every retry and clear of one task of one DAG run.

    Args:
        context: Context of the set-up task.
        write_name: Distinguishes the data sets of one set-up task.
    """
    ti = context["ti"]
    index = "" if ti.map_index is None or ti.map_index < 0 else str(ti.map_index)
    # The first four never contain a slash, so two runs never share a name.
    return job_name("/".join((ti.dag_id, ti.run_id, ti.task_id, index, write_name)))


def origin_of(context: Context) -> JobOrigin:
    """Return the task of a context, as the record of the job that it sets up names it."""
    from lockgate.storage_core.commit.records.job_record import JobOrigin

    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return JobOrigin(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=index)


def triggered_by(context: Context) -> str:
    """Return the user who triggered the DAG run, as Airflow recorded it; empty for a schedule."""
    run = context.get("dag_run")
    return (run and run.triggering_user_name) or ""


def attach_open(handle: object, *, job_attempt: JobAttemptId | None = None) -> Job:
    """Return the job that a handle names, if it can still be written; arguments as for `attach`.

    Raises:
        AirflowFailException: The job is decided or has ended; a retry would not change that.
    """
    from lockgate.storage_core.commit.records.phase import JobPhase

    job = attach(handle, job_attempt=job_attempt)
    phase = job.phase()
    if phase is not JobPhase.OPEN:
        raise AirflowFailException(
            f"job {job.job_id} at {job.destination} is {phase}: nothing can be added to it; nothing was "
            "changed; to compute it again, clear the run from its set-up task on"
        )
    return job


@contextmanager
def suspended_after(job: Job, timeout_s: float | None, log: Logger) -> Iterator[None]:
    """Suspend the job when the block ends, also if it failed: the retry continues the job.

    Args:
        job: The job.
        timeout_s: How long recovery leaves it alone; None: `LOCKGATE_SUSPEND_TIMEOUT_S`.
        log: The task's log.
    """
    with suspended_on_failure(job, timeout_s, log):
        yield
    suspend(job, timeout_s, log)


@contextmanager
def suspended_on_failure(job: Job, timeout_s: float | None, log: Logger) -> Iterator[None]:
    """Suspend the job if the block fails; arguments as for `suspended_after`."""
    try:
        yield
    except BaseException:
        try:
            suspend(job, timeout_s, log)
        except LockgateError as error:
            log.warning("job %s could not be suspended after the failure below: %s", job.job_id, error)
        raise


def drop_artefacts(job: Job) -> None:
    """Delete the job's artefacts, if it has ended; the next sweep deletes what remains."""
    if job.spec.artefacts is not None:
        drop_blobs(job.spec.artefacts.job_id)


def drop_blobs(blob_job: str) -> None:
    """Delete the blobs of a job, named by its id in the blob stores, if the job has ended in the journal."""
    from lockgate.storage_core.blobs.open_blobs import delete_ended

    delete_ended(blob_job, load_settings())


def suspend(job: Job, timeout_s: float | None, log: Logger) -> None:
    """Suspend the job while it is undecided; arguments as for `suspended_after`."""
    from lockgate.storage_core.commit.records.phase import JobPhase

    try:
        if job.phase() is JobPhase.OPEN:
            job.suspend(timeout_s)
    except FencedError:
        # Mapped tasks end at the same time; the one that took the lease last suspends the job for all.
        log.info("job %s: another task holds it now, and will suspend it", job.job_id)
