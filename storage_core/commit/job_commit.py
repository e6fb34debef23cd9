"""The job commit: select attempts, check the audit, take a turn, freeze the plan, decide, roll forward.

Source: commit protocol, "Job commit", steps 1 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lockgate.storage_core.commit.decide.decision import decide_abort, decide_commit
from lockgate.storage_core.commit.decide.plan import check_audit, freeze
from lockgate.storage_core.commit.decide.task_selection import choose, sets_at_once
from lockgate.storage_core.commit.decide.turn import take_turn
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.leases.protocol import Hold, JobLeases
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.records.destination_log.outcome import Receipt
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
    StateLostError,
    StoreUnavailableError,
    TurnBusyError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import AttemptId, JobAttemptId, JobId, TaskId, Token

RETRYABLE_ERRORS: Final = (
    StoreUnavailableError,
    JournalUnavailableError,
    AccessDeniedError,
    UnsupportedStoreError,
    ObjectNotFoundError,
    AlreadyExistsError,
    TurnBusyError,
    MalformedLogError,
    StateLostError,
)
"""Errors that do not concern the job's data: the job stays undecided, and a retry may succeed."""


def commit_job(
    context: CommitContext,
    *,
    job_attempt: JobAttemptId,
    winners: Mapping[TaskId, AttemptId] | None,
    token: Token,
    leases: JobLeases,
    lease: Hold,
) -> Receipt:
    """Commit a job and return its receipt; see `Job.commit`."""
    if context.folder.decision() is None:
        try:
            tasks = _decide(context, job_attempt, winners, token=token, leases=leases, lease=lease)
            context = replace(context, tasks=tasks)
        except NotAppliedError as error:
            # If another process has decided meanwhile, the error is irrelevant: continue with that decision.
            if context.folder.decision() is None:
                if not isinstance(error, RETRYABLE_ERRORS):
                    lease.check()  # a driver that took the job over owns it; do not abort its job
                    _abort(context, token, f"{type(error).__name__}: {error}")
                raise
    lease.abandon()  # from the decision on, any process may continue, with or without a lease
    ended = roll_forward(context)
    if ended.receipt is None:
        raise JobFailedError(
            f"job {context.job.job_id} at {context.store.url} ended without publishing anything: "
            f"{ended.reason}; {context.folder.key('report.json')} has the outcome of every file; run the job "
            "again"
        )
    return ended.receipt


def _decide(
    context: CommitContext,
    job_attempt: JobAttemptId,
    winners: Mapping[TaskId, AttemptId] | None,
    *,
    token: Token,
    leases: JobLeases,
    lease: Hold,
) -> int:
    """Decide to commit; return the number of selected tasks."""
    folder, job = context.folder, context.job
    with step("load"):
        chosen = choose(folder, job_attempt, winners, at_once=sets_at_once(context.settings))
        check_audit(folder, job, chosen)
    while True:
        turn = take_turn(
            folder,
            token,
            lease.stamp,
            leases=leases,
            clock=context.clock,
            roll_forward_other=lambda other: _roll_forward_other(context, other),
        )
        # On an error the job keeps the turn, because another driver of this job may be deciding in it now.
        # Other jobs pass the turn when this job is decided to abort or no driver has its lease.
        plan = freeze(folder, job, job_attempt, chosen, turn, settings=context.settings)
        lease.check(context.settings.commit_window_s)
        # If another job has passed the turn because this process was slow, take another turn: after the
        # decision it would be too late, and the job would be reverted.
        if DestinationLog(context.store).turn(turn).outcome is None:
            break
    decide_commit(folder, plan=plan.name, turn=turn, token=token, stamp=lease.stamp, clock=context.clock)
    return len(chosen)


def _roll_forward_other(context: CommitContext, other: JobId) -> None:
    folder = JobFolder(context.store, other)
    roll_forward(replace(context, folder=folder, job=folder.job(), completer=None))


def _abort(context: CommitContext, token: Token, reason: str) -> None:
    """Decide to abort and clean up. If that fails too, the caller raises the first error."""
    with suppress(LockgateError):
        decision = decide_abort(context.folder, reason=reason, token=token, clock=context.clock)
        if decision.verdict == "abort":
            roll_forward(context)
