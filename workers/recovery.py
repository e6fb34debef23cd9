"""Recovery by many hands: a task a job on the queue `recovery`, and this process for what workers leave."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import msgspec

from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, settle, unsettled
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import Settings
from lockgate.workers.app import RECOVERY_QUEUE
from lockgate.workers.gather import gather
from lockgate.workers.tasks import recover_job

TIMEOUT_S: Final = 3600.0
GRACE_S: Final = 60.0
WORK: Final = "recovery"

logger = logging.getLogger(__name__)


def settle_by_workers(
    jobs: Sequence[JobAt],
    *,
    settings: Settings,
    dry_run: bool = False,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
    progress: Progress = no_progress,
) -> Iterator[RecoveryResult]:
    """Have workers settle jobs, each whatever becomes of the others; yields a result a job, as they end.

    Safe to call again, and beside itself. Jobs that the workers do not settle in time, or at all because none
    listens or the broker is gone, are settled by threads of this process.

    Args:
        jobs: Each once.
        settings: Of this process; the workers have their own.
        dry_run: Say what would be done and change nothing.
        timeout_s: For all of them together.
        grace_s: How long to wait for a worker where none listens.
        progress: Hears how many jobs are done.
    """
    left = dict(enumerate(jobs))
    signatures = [recover_job.s(job.destination, job.job_id, dry_run) for job in jobs]
    outcomes = gather(signatures, work=WORK, queue=RECOVERY_QUEUE, timeout_s=timeout_s, grace_s=grace_s)
    try:
        with closing(outcomes):
            for position, outcome in outcomes:
                job = left.pop(position)
                progress(WORK, len(jobs) - len(left), len(jobs))
                if isinstance(outcome, LockgateError):
                    yield unsettled(job, outcome)
                else:
                    yield msgspec.convert(outcome, RecoveryResult)
    except LockgateError as error:
        logger.warning("%s: %d jobs are left to this process: %s", WORK, len(left), error)
        done = len(jobs) - len(left)
        for result in settle(left.values(), dry_run=dry_run, settings=settings):
            done += 1
            progress(WORK, done, len(jobs))
            yield result
