"""What operators and buttons call: work for the Celery workers, with its results and its errors.

Importing this needs Celery; nothing is read and no broker is looked for before the first call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec
from celery.canvas import Signature

from lockgate.storage_core.commit.publish.shard_completion import ShardReport
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.ids import JobId
from lockgate.workers.app import COMMIT_QUEUE, SWEEP_QUEUE
from lockgate.workers.gather import Row, gather
from lockgate.workers.tasks import commit_task, complete_shard, sweep_uploads
from lockgate.workers.tasks import sweep_blobs as sweep_task

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.reports import SweepReport

TIMEOUT_S: Final = 4 * 3600.0
GRACE_S: Final = 60.0

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
) -> list[Row]:
    """Have workers commit the staged tasks of a job attempt; returns one row a task, in the order given.

    Safe to call again: a task that is committed already is not committed twice.

    Args:
        destination: URL or path that the job writes.
        job_id: Of the job.
        job_attempt: The run of its driver whose task list is frozen.
        task_ids: Of that list.
        timeout_s: For all of them together.
        grace_s: How long to wait for a worker where none listens.
        progress: Hears how many tasks are done.

    Raises:
        MissingPartError: No worker listens.
        OutcomeUnknownError: The time is over, or a worker's task ended in a way nobody foresaw.
        LockgateError: The first task that failed, with the error that its worker raised; those that no
            worker had begun were withdrawn.
    """
    return _run(
        [commit_task.s(destination, job_id, job_attempt, task_id) for task_id in task_ids],
        work=f"task commits of job {job_id}",
        step="tasks",
        queue=COMMIT_QUEUE,
        timeout_s=timeout_s,
        grace_s=grace_s,
        progress=progress,
    )


def complete_by_workers(
    destination: str,
    job_id: JobId,
    plan: str,
    shard_count: int,
    *,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
    progress: Progress = no_progress,
) -> Iterator[ShardReport]:
    """Have workers make a decided plan's files visible: the `complete` of `Job.commit`.

    After the decision there is only forward: shards that the workers do not settle, for whatever reason, are
    left out, and the caller completes them itself.
    """
    work = f"completion of job {job_id}"
    signatures = [complete_shard.s(destination, job_id, plan, shard) for shard in range(shard_count)]
    outcomes = gather(signatures, work=work, queue=COMMIT_QUEUE, timeout_s=timeout_s, grace_s=grace_s)
    try:
        with closing(outcomes):
            for done, (shard, outcome) in enumerate(outcomes, start=1):
                if isinstance(outcome, LockgateError):
                    logger.warning("%s: shard %d is left to this process: %s", work, shard, outcome)
                else:
                    yield msgspec.convert(outcome, ShardReport)
                progress("complete", done, shard_count)
    except LockgateError as error:
        logger.warning("%s: what the workers have not done is left to this process: %s", work, error)


def sweep(
    destination: str, *, dry_run: bool = True, timeout_s: float = TIMEOUT_S, grace_s: float = GRACE_S
) -> Row:
    """Have a worker sweep a destination's orphaned uploads.

    Raises:
        MissingPartError: No worker listens.
        LockgateError: What the worker met.
    """
    rows = _run(
        [sweep_uploads.s(destination, dry_run)],
        work=f"sweep of {destination}",
        step="sweep",
        queue=SWEEP_QUEUE,
        timeout_s=timeout_s,
        grace_s=grace_s,
        progress=no_progress,
    )
    return rows[0]


def sweep_blobs(
    *,
    dry_run: bool = True,
    orphans: bool | None = None,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
) -> SweepReport:
    """Have a worker sweep the blobs that nothing keeps, at the blob server of its settings.

    Raises:
        MissingPartError: No worker listens.
        LockgateError: What the worker met.
    """
    (row,) = _run(
        [sweep_task.s(dry_run, orphans)],
        work="sweep of blobs",
        step="sweep",
        queue=SWEEP_QUEUE,
        timeout_s=timeout_s,
        grace_s=grace_s,
        progress=no_progress,
    )
    from lockgate.storage_core.blobs.reports import SweepReport  # noqa: PLC0415 - it brings the journal

    return msgspec.convert(row, SweepReport)


def _run(
    signatures: Sequence[Signature],
    *,
    work: str,
    step: str,
    queue: str,
    timeout_s: float,
    grace_s: float,
    progress: Progress,
) -> list[Row]:
    rows: dict[int, Row] = {}
    outcomes = gather(signatures, work=work, queue=queue, timeout_s=timeout_s, grace_s=grace_s)
    with closing(outcomes):
        for done, (position, outcome) in enumerate(outcomes, start=1):
            if isinstance(outcome, LockgateError):
                logger.error("%s: task %d of %d: %s", work, position + 1, len(signatures), outcome)
                raise outcome
            rows[position] = outcome
            progress(step, done, len(signatures))
    return [rows[position] for position in sorted(rows)]
