"""Settle jobs on the workers, one task for each job, and the remaining jobs in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from celery.canvas import Signature

from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, failed_recovery, recover_jobs
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import Settings
from lockgate.workers.celery_app import RECOVERY_QUEUE
from lockgate.workers.gather import dispatch, gather
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
    batch: str | None = None,
) -> Iterator[RecoveryResult]:
    """Settle jobs on the workers, independently of each other; yield one result for each job, as they end.

    Safe to call again, also concurrently. Threads of this process settle the jobs that the workers do not
    settle: because of the time limit, because none listens, or because the broker does not answer.

    Args:
        jobs: Jobs, without duplicates.
        settings: Settings of this process; the workers have their own.
        dry_run: Report what would be done and change nothing.
        timeout_s: Time limit for all of them together.
        grace_s: How long to wait for a worker if none listens.
        progress: Called with the number of settled jobs.
        batch: Result of `dispatch_recovery` for the same jobs; None: they are sent now.
    """
    remaining = dict(enumerate(jobs))
    outcomes = gather(
        _signatures(jobs, dry_run=dry_run),
        work=WORK,
        queue=RECOVERY_QUEUE,
        timeout_s=timeout_s,
        grace_s=grace_s,
        batch=batch,
    )
    try:
        with closing(outcomes):
            for position, outcome in outcomes:
                job = remaining.pop(position)
                progress(WORK, len(jobs) - len(remaining), len(jobs))
                if isinstance(outcome, LockgateError):
                    yield failed_recovery(job, outcome)
                else:
                    yield convert(outcome, RecoveryResult)
    except LockgateError as error:
        logger.warning("%s: this process settles the remaining %d jobs: %s", WORK, len(remaining), error)
        results = recover_jobs(remaining.values(), dry_run=dry_run, settings=settings)
        for done, result in enumerate(results, start=len(jobs) - len(remaining) + 1):
            progress(WORK, done, len(jobs))
            yield result


def dispatch_recovery(jobs: Sequence[JobAt], *, dry_run: bool, expires_s: float) -> str:
    """Send the recovery of jobs to the workers; return the batch for `settle_by_workers`.

    Raises:
        OutcomeUnknownError: The broker does not answer.
    """
    return dispatch(_signatures(jobs, dry_run=dry_run), work=WORK, expires_s=expires_s)


def _signatures(jobs: Sequence[JobAt], *, dry_run: bool) -> list[Signature]:
    return [recover_job.s(job.destination, job.job_id, dry_run) for job in jobs]
