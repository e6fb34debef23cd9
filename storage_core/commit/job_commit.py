"""The job commit: load the task commits, take the turn, freeze the plan, decide, roll forward.

Source: commit protocol, "Job commit", steps 1 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from lockgate.storage_core.commit.decide.decision import decide_abort, decide_commit
from lockgate.storage_core.commit.decide.plan import Draft, Plan, freeze, write_plan
from lockgate.storage_core.commit.decide.task_selection import (
    KEPT_BYTES,
    Chosen,
    chosen_digest,
    select,
    sets_at_once,
)
from lockgate.storage_core.commit.decide.turn import take_turn
from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.leases.job_lease import HeldLease, JobLeases
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.roll_forward import Decided, roll_forward
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.requests_ahead import RequestsAhead
from lockgate.storage_core.commit.task.task_commit import refuse_empty
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    JobFailedError,
    JournalUnavailableError,
    LockgateError,
    MalformedLogError,
    NotAppliedError,
    NoTasksError,
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
    NoTasksError,
    TurnBusyError,
    MalformedLogError,
    StateLostError,
)
"""Errors that do not concern the job's data: the job stays undecided, and a retry may succeed."""


@dataclass
class JobCommit:
    """One try to commit a job.

    Attributes:
        context: Context of the job.
        job_attempt: Job attempt whose tasks the commit includes.
        winners: Attempt to commit for each task, if the driver has chosen them.
        may_be_empty: Whether a job of which no task has committed may be published.
        token: Owner token of this process.
        leases: Leases of the jobs at the destination.
        take_lease: Takes the job's lease, or returns it if this process has it.
        replaces: Files that a compaction has read, by key.
        restores: What a revert makes live.
    """

    context: CommitContext
    job_attempt: JobAttemptId
    winners: Mapping[TaskId, AttemptId] | None
    may_be_empty: bool
    token: Token
    leases: JobLeases
    take_lease: Callable[[], HeldLease]
    replaces: Mapping[str, RemovedFile] | None = None
    restores: Manifest | None = None
    _chosen: list[Chosen] = field(init=False)
    _lease: HeldLease = field(init=False)
    _ahead: RequestsAhead = field(init=False)

    def run(self) -> Receipt:
        """Commit the job and return its receipt; see `Job.commit`."""
        decided = None
        with Together(self.context.settings.near_calls) as together:
            self._ahead = RequestsAhead(self.context, self.job_attempt, together)
            if self._ahead.decision.result() is None:
                with self._abort_if_refused():
                    self._load()
                    plan = None
                    while plan is None:  # another job passes the turn of a slow process
                        turn = self._take_turn()
                        plan = self._freeze_plan(turn)
                    decided = self._decide(plan)
        return self._roll_forward(decided)

    def _load(self) -> None:
        """Choose an attempt of each task, take the lease, and check the audit."""
        folder, settings, listed = self.context.folder, self.context.settings, self._ahead.listed.result()
        with step("load"):
            selection = select(
                folder,
                self.job_attempt,
                self._ahead.expected.result(),
                listed,
                winners=self.winners,
                at_once=sets_at_once(settings, listed.sets),
                keep_bytes=KEPT_BYTES,
            )
        if not (self.may_be_empty or selection.is_begun):
            refuse_empty(folder)  # before the lease is taken from a driver that may live
        self._chosen = selection.chosen
        audit = self._ahead.check_audit(self._chosen)
        self._lease = self.take_lease()
        self._additions = self._ahead.store_additions(self._chosen)
        self._audit = audit.result()

    def _take_turn(self) -> int:
        """Take the next turn at the destination, if the job's record is still there."""
        self._ahead.record.result()
        # On an error the job keeps it, because another driver of the job may be deciding in it now. Other
        # jobs pass the turn when this job is decided to abort, or no driver has its lease.
        return take_turn(
            self.context.folder,
            self.token,
            self._lease.stamp,
            leases=self.leases,
            clock=self.context.clock,
            roll_forward_other=partial(_roll_forward_other, self.context),
            seen=self._ahead.log(),
        )

    def _freeze_plan(self, turn: int) -> Plan | None:
        """Store the plan under its digest; return None if another job has passed the turn meanwhile."""
        folder, additions = self.context.folder, self._additions.result()
        digest = chosen_digest(self._chosen)
        draft = Draft(self.job_attempt, digest, self._audit, additions, self.replaces, self.restores)
        uploads = self._ahead.check_uploads(additions)
        manifest = partial(self._ahead.manifest_before, turn)
        settings = self.context.settings
        head = freeze(folder, self.context.job, draft, turn, manifest=manifest, settings=settings)
        job, outcome = self._ahead.job(), self._ahead.outcome(turn)
        plan = write_plan(folder, head, draft)
        uploads.result()
        job.result()
        # After the decision a passed turn would be noticed too late: the job would be reverted.
        return plan if outcome.result() is None else None

    def _decide(self, plan: Plan) -> Decided | None:
        """Decide to commit the plan; return None if the decision is another process's."""
        # Last: a process that was paused in any call before finds here that it has lost the job.
        self._lease.check(self.context.settings.commit_window_s)
        decision = decide_commit(
            self.context.folder,
            plan=plan.name,
            turn=plan.head.turn,
            token=self.token,
            stamp=self._lease.stamp,
            clock=self.context.clock,
        )
        is_own = (decision.verdict, decision.token, decision.plan) == ("commit", self.token, plan.name)
        return Decided(decision, plan) if is_own else None

    def _roll_forward(self, decided: Decided | None) -> Receipt:
        """Bring the decided job to its end. Any process may do so, with or without a lease."""
        context = self.context if decided is None else replace(self.context, tasks=len(self._chosen))
        if decided is not None:
            self._lease.abandon()
        ended = roll_forward(context, decided)
        if ended.receipt is None:
            raise JobFailedError(
                f"job {context.job.job_id} at {context.store.url} ended without publishing anything: "
                f"{ended.reason}; {context.folder.key('report.json')} has the outcome of every file; run the "
                "job again"
            )
        return ended.receipt

    @contextmanager
    def _abort_if_refused(self) -> Iterator[None]:
        """Abort a job whose data or destination do not allow a commit, unless it is decided meanwhile."""
        try:
            yield
        except NotAppliedError as error:
            self._ahead.wait_for_additions()
            if self.context.folder.decision() is not None:
                return  # the error is irrelevant: follow that decision
            if not isinstance(error, RETRYABLE_ERRORS):
                self.take_lease().check()  # a driver that took the job over owns it; do not abort its job
                _abort(self.context, self.token, f"{type(error).__name__}: {error}")
            raise


def _roll_forward_other(context: CommitContext, other: JobId) -> None:
    folder = JobFolder(context.store, other)
    roll_forward(replace(context, folder=folder, job=folder.job(), completer=None))


def _abort(context: CommitContext, token: Token, reason: str) -> None:
    """Decide to abort and clean up. If that fails too, the caller raises the first error."""
    with suppress(LockgateError):
        decision = decide_abort(context.folder, reason=reason, token=token, clock=context.clock)
        if decision.verdict == "abort":
            roll_forward(context)
