"""The job commit: select attempts, check the audit, take a turn, freeze the plan, decide, roll forward.

Source: commit protocol, "Job commit", steps 1 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from lockgate.storage_core.commit.decide.additions import Additions, check_uploads, store_additions
from lockgate.storage_core.commit.decide.decision import decide_abort, decide_commit
from lockgate.storage_core.commit.decide.plan import Draft, check_audit, freeze, write_plan
from lockgate.storage_core.commit.decide.task_selection import (
    HELD_BYTES,
    Chosen,
    chosen_digest,
    list_tasks,
    select,
    sets_at_once,
)
from lockgate.storage_core.commit.decide.turn import take_turn
from lockgate.storage_core.commit.destination.log import DestinationLog, LogRead
from lockgate.storage_core.commit.destination.manifest import Manifest
from lockgate.storage_core.commit.leases.protocol import Hold, JobLeases
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.roll_forward import Decided, roll_forward
from lockgate.storage_core.commit.records.destination_log.outcome import Receipt
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.task.expected_tasks import refused_as_empty
from lockgate.storage_core.concurrency import Together
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
    may_be_empty: bool,
    token: Token,
    leases: JobLeases,
    hold: Callable[[], Hold],
) -> Receipt:
    """Commit a job and return its receipt; see `Job.commit`.

    Requests that do not depend on each other are sent together, because a commit at a store that is far away
    takes as long as those that follow each other. A create that orders processes waits for all it depends on.
    """
    folder, settings = context.folder, context.settings
    decided = None
    with Together(settings.parallelism) as together:
        with step("load"):
            decision = together.start(folder.decision)
            expected = together.start(partial(folder.expected, job_attempt))
            listed = together.start(partial(list_tasks, folder))
        with step("turn"):
            log = together.start(DestinationLog(context.store, settings.parallelism).read)
        if decision.result() is not None:
            lease = hold()
        else:
            selection, refusal = None, None
            try:
                with step("load"):
                    selection = select(
                        folder,
                        job_attempt,
                        expected.result(),
                        listed.result(),
                        winners=winners,
                        at_once=sets_at_once(settings, listed.result().sets),
                        keep_bytes=HELD_BYTES,
                    )
            except NotAppliedError as error:
                refusal = error
            if selection is not None and not (may_be_empty or selection.is_begun):
                raise refused_as_empty(folder)  # before the lease is taken from a driver that may live
            held = together.start(hold)
            commit = _Commit(context, job_attempt, selection.chosen, log, together) if selection else None
            lease = held.result()
            try:
                if commit is None:
                    raise refusal or AssertionError
                decided = commit.decide(token, leases=leases, lease=lease)
                context = replace(context, tasks=len(commit.chosen))
            except NotAppliedError as error:
                # If another process has decided meanwhile, the error is irrelevant: follow that decision.
                if folder.decision() is None:
                    if not isinstance(error, RETRYABLE_ERRORS):
                        lease.check()  # a driver that took the job over owns it; do not abort its job
                        _abort(context, token, f"{type(error).__name__}: {error}")
                    raise
    lease.abandon()  # from the decision on, any process may continue, with or without a lease
    ended = roll_forward(context, decided)
    if ended.receipt is None:
        raise JobFailedError(
            f"job {context.job.job_id} at {context.store.url} ended without publishing anything: "
            f"{ended.reason}; {context.folder.key('report.json')} has the outcome of every file; run the job "
            "again"
        )
    return ended.receipt


class _Commit:
    """One try to decide a commit."""

    def __init__(
        self,
        context: CommitContext,
        job_attempt: JobAttemptId,
        chosen: list[Chosen],
        log: Future[LogRead],
        together: Together,
    ) -> None:
        """Begin with what needs no lease.

        Args:
            context: Context of the job.
            job_attempt: Job attempt whose tasks the commit includes.
            chosen: Their selected attempts.
            log: The destination's log, which is being read.
            together: Starts calls.
        """
        self.context = context
        self.chosen = chosen
        self._job_attempt = job_attempt
        self._log = log
        self._together = together
        with step("load"):
            self._audit = together.start(partial(check_audit, context.folder, context.job, chosen))

    def decide(self, token: Token, *, leases: JobLeases, lease: Hold) -> Decided | None:
        """Decide to commit; return the decision unless it is another process's."""
        context = self.context
        stored = self._together.start(
            partial(store_additions, context.folder, context.job, self.chosen, context.settings)
        )
        try:
            return self._decide(token, stored, leases=leases, lease=lease)
        finally:
            wait((stored,))  # an abort would not delete what is written after it

    def _decide(
        self, token: Token, stored: Future[Additions], *, leases: JobLeases, lease: Hold
    ) -> Decided | None:
        context, together = self.context, self._together
        folder, job, settings = context.folder, context.job, context.settings
        audit = self._audit.result()
        seen: LogRead | None = self._log.result()
        while True:
            before = together.start(partial(self._manifest, seen))
            turn = take_turn(
                folder,
                token,
                lease.stamp,
                leases=leases,
                clock=context.clock,
                roll_forward_other=lambda other: _roll_forward_other(context, other),
                seen=seen,
            )
            # On an error the job keeps the turn, because another driver of it may be deciding in it now.
            # Other jobs pass the turn when this job is decided to abort or no driver has its lease.
            draft = Draft(self._job_attempt, chosen_digest(self.chosen), audit, stored.result())
            with step("plan"):
                open_uploads = together.start(partial(check_uploads, folder, draft.additions, settings))
            manifest = partial(self._manifest_before, turn, before)
            head = freeze(folder, job, draft, turn, manifest=manifest, settings=settings)
            with step("decide"):
                exists = together.start(folder.job)
            with step("turn"):
                passed = together.start(partial(DestinationLog(context.store).outcome, turn))
            plan = write_plan(folder, head, draft)
            open_uploads.result()
            exists.result()
            # If another job has passed the turn because this process was slow, take another turn: after the
            # decision it would be too late, and the job would be reverted.
            if passed.result() is None:
                break
            seen = None
        # Last: a process that was paused in any call before finds here that it has lost the job.
        lease.check(settings.commit_window_s)
        decision = decide_commit(
            folder, plan=plan.name, turn=turn, token=token, stamp=lease.stamp, clock=context.clock
        )
        is_own = (decision.verdict, decision.token, decision.plan) == ("commit", token, plan.name)
        return Decided(decision, plan) if is_own else None

    def _manifest(self, seen: LogRead | None) -> Manifest | None:
        log = DestinationLog(self.context.store, self.context.settings.parallelism)
        return None if seen is None else log.fold(seen)

    def _manifest_before(self, turn: int, before: Future[Manifest | None]) -> Manifest:
        """Return the live files after the turn before this one.

        They may be read before the turn is claimed: its claim shows that the turn before it had its outcome,
        and outcomes never change.
        """
        found = before.result()
        if found is not None and found.turn == turn - 1:
            return found
        return DestinationLog(self.context.store, self.context.settings.parallelism).manifest()


def _roll_forward_other(context: CommitContext, other: JobId) -> None:
    folder = JobFolder(context.store, other)
    roll_forward(replace(context, folder=folder, job=folder.job(), completer=None))


def _abort(context: CommitContext, token: Token, reason: str) -> None:
    """Decide to abort and clean up. If that fails too, the caller raises the first error."""
    with suppress(LockgateError):
        decision = decide_abort(context.folder, reason=reason, token=token, clock=context.clock)
        if decision.verdict == "abort":
            roll_forward(context)
