"""The job commit: load, gate, turn, plan, decide, and from there only forward.

Source: commit protocol, "Job commit", steps 1 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from lockgate.storage_core.commit.decide.decision import decide_abort, decide_commit
from lockgate.storage_core.commit.decide.plan import check_audit, freeze
from lockgate.storage_core.commit.decide.task_selection import choose
from lockgate.storage_core.commit.decide.turn import take_turn
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.leases.protocol import Hold, Leases
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.records.job import Ended, Receipt
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    JobFailedError,
    JournalUnavailableError,
    LockgateError,
    MalformedLogError,
    NotAppliedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TurnBusyError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import AttemptId, JobAttemptId, JobId, TaskId, Token

STORE_TROUBLE: Final = (
    StoreUnavailableError,
    JournalUnavailableError,
    AccessDeniedError,
    UnsupportedStoreError,
    ObjectNotFoundError,
    AlreadyExistsError,
    TurnBusyError,
    MalformedLogError,
)
"""What says nothing about the job's data: it stays undecided, and a later try may well succeed."""


def commit_job(
    work: JobWork,
    *,
    job_attempt: JobAttemptId,
    winners: Mapping[TaskId, AttemptId] | None,
    token: Token,
    leases: Leases,
    keeper: Hold,
) -> Receipt:
    """Bring a job from its pending sets to its receipt; see `Job.commit`."""
    if work.folder.decision() is None:
        try:
            _to_the_decision(work, job_attempt, winners, token=token, leases=leases, keeper=keeper)
        except NotAppliedError as error:
            # Where another attempt's decision stands meanwhile, the error tells nothing: help that one.
            if work.folder.decision() is None:
                if not isinstance(error, STORE_TROUBLE):
                    keeper.check()  # whoever took the job over owns it: it is not ours to abort
                    _abort(work, token, f"{type(error).__name__}: {error}")
                raise
    keeper.abandon()  # decided: whoever finds it may help, whatever a lease says
    return _receipt(work, roll_forward(work))


def _to_the_decision(
    work: JobWork,
    job_attempt: JobAttemptId,
    winners: Mapping[TaskId, AttemptId] | None,
    *,
    token: Token,
    leases: Leases,
    keeper: Hold,
) -> None:
    folder, job = work.folder, work.job
    with step("load"):
        chosen = choose(folder, job_attempt, winners)
        check_audit(folder, job, chosen)
    while True:
        turn = take_turn(
            folder,
            token,
            keeper.stamp,
            leases=leases,
            clock=work.clock,
            help_job=lambda other: _help(work, other),
        )
        # Where this fails the turn stays the job's, for another driver of it may be deciding in it now.
        # Others pass it once the job is decided to abort, or nobody drives it.
        plan = freeze(folder, job, job_attempt, chosen, turn, parallelism=work.settings.parallelism)
        keeper.check(work.settings.commit_window_s)
        # A turn that was passed while this process was slow costs it the turn and nothing else, if it is
        # noticed before the decision; noticed after, the job is reverted.
        if DestinationLog(work.store).turn(turn).outcome is None:
            break
    decide_commit(folder, plan=plan.name, turn=turn, token=token, stamp=keeper.stamp, clock=work.clock)


def _help(work: JobWork, other: JobId) -> None:
    """Bring the decided job that holds the turn to its end."""
    folder = JobFolder(work.store, other)
    roll_forward(
        JobWork(
            folder=folder,
            job=folder.job(),
            settings=work.settings,
            clock=work.clock,
            progress=work.progress,
        )
    )


def _abort(work: JobWork, token: Token, reason: str) -> None:
    """Decide abort, then clean up. Where that fails too, the first error is told, and recovery goes on."""
    with suppress(LockgateError):
        decision = decide_abort(work.folder, reason=reason, token=token, clock=work.clock)
        if decision.verdict == "abort":
            roll_forward(work)


def _receipt(work: JobWork, ended: Ended) -> Receipt:
    if ended.receipt is not None:
        return ended.receipt
    raise JobFailedError(
        f"job {work.job.job_id} at {work.store.url} ended without publishing anything: {ended.reason}; "
        f"every file's fate is in {work.folder.key('report.json')}; run the job again"
    )
