"""Send work to the Celery workers and return its results, or raise its errors; called by operators."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from celery.canvas import Signature

from lockgate.storage_core.commit.publish.shard_completion import ShardReport
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, failed_recovery, recover_jobs
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings
from lockgate.workers.celery_app import COMMIT_QUEUE, RECOVERY_QUEUE, SWEEP_QUEUE
from lockgate.workers.gather import Row, dispatch, gather
from lockgate.workers.tasks import commit_task, complete_shard, recover_job
from lockgate.workers.tasks import sweep_blobs as sweep_task

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.reports import BlobSweepReport

TIMEOUT_S: Final = 4 * 3600.0
GRACE_S: Final = 60.0
RECOVERY: Final = "recovery"

logger = logging.getLogger(__name__)


def commit_tasks(
    destination: str,
    job_id: str,
    job_attempt: str,
    task_ids: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
    progress: Progress = no_progress,
    batch: str | None = None,
) -> list[Row]:
    """Commit the staged tasks of a job attempt on the workers; return one row for each task, in order.

    Safe to call again: a task is not committed twice.

    Args:
        destination: URL or path that the job writes.
        job_id: Id of the job.
        job_attempt: Run of its driver whose task list is frozen.
        task_ids: Ids of tasks in that list.
        timeout_s: Time limit for all of them together.
        grace_s: How long to wait for a worker if none listens.
        progress: Called with the number of committed tasks.
        batch: Result of `dispatch_tasks` for the same tasks; None: they are sent now.

    Raises:
        NoWorkerError: No worker listens.
        OutcomeUnknownError: The time limit has passed, or a worker's task raised an unexpected error.
        LockgateError: The error of the first task that failed; tasks that no worker had begun were withdrawn.
    """
    signatures = [commit_task.s(destination, job_id, job_attempt, task_id) for task_id in task_ids]
    work = f"task commits of job {job_id}"
    outcomes = gather(
        signatures, work=work, queue=COMMIT_QUEUE, timeout_s=timeout_s, grace_s=grace_s, batch=batch
    )
    return _rows(outcomes, work, len(signatures), progress)


def dispatch_tasks(
    destination: str, job_id: str, job_attempt: str, task_ids: Sequence[str], *, expires_s: float
) -> str:
    """Send the commits of staged tasks to the workers; return the batch for `commit_tasks`.

    Raises:
        OutcomeUnknownError: The broker does not answer.
    """
    signatures = [commit_task.s(destination, job_id, job_attempt, task_id) for task_id in task_ids]
    return dispatch(signatures, work=f"task commits of job {job_id}", expires_s=expires_s)


def dispatch_shards(destination: str, job_id: JobId, plan: str, shard_count: int, *, expires_s: float) -> str:
    """Send the completion of a decided plan to the workers; return the batch for `complete_by_workers`.

    Raises:
        OutcomeUnknownError: The broker does not answer.
    """
    signatures = [complete_shard.s(destination, job_id, plan, shard) for shard in range(shard_count)]
    return dispatch(signatures, work=f"completion of job {job_id}", expires_s=expires_s)


def complete_by_workers(
    destination: str,
    job_id: JobId,
    plan: str,
    shard_count: int,
    *,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
    progress: Progress = no_progress,
    batch: str | None = None,
) -> Iterator[ShardReport]:
    """Make a decided plan's files visible on the workers; pass it as `complete` to `Job.commit`.

    After the decision the job only goes forward. A shard that the workers do not complete, for whatever
    reason, is not yielded; the caller completes it. `batch` is the result of `dispatch_shards`, or None to
    send them now.
    """
    work = f"completion of job {job_id}"
    signatures = [complete_shard.s(destination, job_id, plan, shard) for shard in range(shard_count)]
    outcomes = gather(
        signatures, work=work, queue=COMMIT_QUEUE, timeout_s=timeout_s, grace_s=grace_s, batch=batch
    )
    try:
        with closing(outcomes):
            for done, (shard, outcome) in enumerate(outcomes, start=1):
                if isinstance(outcome, LockgateError):
                    logger.warning("%s: this process completes shard %d: %s", work, shard, outcome)
                else:
                    yield convert(outcome, ShardReport)
                progress("complete", done, shard_count)
    except LockgateError as error:
        logger.warning("%s: this process completes the remaining shards: %s", work, error)


def sweep_blobs(
    *,
    dry_run: bool = True,
    orphans: bool | None = None,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
) -> BlobSweepReport:
    """Sweep unreferenced blobs on a worker, at the blob server that the worker's settings name.

    Raises:
        NoWorkerError: No worker listens.
        LockgateError: The error that the worker raised.
    """
    from lockgate.storage_core.blobs.reports import BlobSweepReport

    task, work = sweep_task.s(dry_run, orphans), "sweep of blobs"
    outcomes = gather([task], work=work, queue=SWEEP_QUEUE, timeout_s=timeout_s, grace_s=grace_s)
    (row,) = _rows(outcomes, work, 1, no_progress)
    return convert(row, BlobSweepReport)


def _rows(
    outcomes: Generator[tuple[int, Row | LockgateError]], work: str, count: int, progress: Progress
) -> list[Row]:
    """Return the rows of all tasks in order, or raise the error of the first that failed."""
    rows: dict[int, Row] = {}
    with closing(outcomes):
        for done, (position, outcome) in enumerate(outcomes, start=1):
            if isinstance(outcome, LockgateError):
                logger.error("%s: task %d of %d: %s", work, position + 1, count, outcome)
                raise outcome
            rows[position] = outcome
            progress("tasks", done, count)
    return [rows[position] for position in sorted(rows)]


def recover_by_workers(
    jobs: Sequence[JobAt],
    *,
    settings: Settings,
    dry_run: bool = False,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
    progress: Progress = no_progress,
    batch: str | None = None,
) -> Iterator[RecoveryResult]:
    """Recover jobs on the workers, independently of each other; yield one result for each job, as they end.

    Safe to call again, also concurrently. Threads of this process recover the jobs that the workers do
    not: because of the time limit, because none listens, or because the broker does not answer.

    Args:
        jobs: Jobs, without duplicates.
        settings: Settings of this process; the workers have their own.
        dry_run: Report what would be done and change nothing.
        timeout_s: Time limit for all of them together.
        grace_s: How long to wait for a worker if none listens.
        progress: Called with the number of recovered jobs.
        batch: Result of `dispatch_recovery` for the same jobs; None: they are sent now.
    """
    remaining = dict(enumerate(jobs))
    outcomes = gather(
        _signatures(jobs, dry_run=dry_run),
        work=RECOVERY,
        queue=RECOVERY_QUEUE,
        timeout_s=timeout_s,
        grace_s=grace_s,
        batch=batch,
    )
    try:
        with closing(outcomes):
            for position, outcome in outcomes:
                job = remaining.pop(position)
                progress(RECOVERY, len(jobs) - len(remaining), len(jobs))
                if isinstance(outcome, LockgateError):
                    yield failed_recovery(job, outcome)
                else:
                    yield convert(outcome, RecoveryResult)
    except LockgateError as error:
        logger.warning("%s: this process recovers the remaining %d jobs: %s", RECOVERY, len(remaining), error)
        results = recover_jobs(remaining.values(), dry_run=dry_run, settings=settings)
        for done, result in enumerate(results, start=len(jobs) - len(remaining) + 1):
            progress(RECOVERY, done, len(jobs))
            yield result


def dispatch_recovery(jobs: Sequence[JobAt], *, dry_run: bool, expires_s: float) -> str:
    """Send the recovery of jobs to the workers; return the batch for `recover_by_workers`.

    Raises:
        OutcomeUnknownError: The broker does not answer.
    """
    return dispatch(_signatures(jobs, dry_run=dry_run), work=RECOVERY, expires_s=expires_s)


def _signatures(jobs: Sequence[JobAt], *, dry_run: bool) -> list[Signature]:
    return [recover_job.s(job.destination, job.job_id, dry_run) for job in jobs]
