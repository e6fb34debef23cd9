"""The `Job` class: one run that writes a destination, and the public API of the commit protocol.

    with open_job("s3://lake/sales", "sales-2026-11-21", mode="append") as job:
        with job.attempt("part-0") as attempt, attempt.open("day=1/a.parquet") as file:
            file.write(...)
        receipt = job.commit()

Nothing is visible before `commit`. After a crash, recovery finishes the job or removes what it left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.decide import audit
from lockgate.storage_core.commit.decide.decision import decide_abort
from lockgate.storage_core.commit.decide.task_selection import newest_job_attempt
from lockgate.storage_core.commit.decide.turn import pass_turn
from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.job_commit import RETRYABLE_ERRORS, JobCommit
from lockgate.storage_core.commit.job_events import EventName, record_event
from lockgate.storage_core.commit.job_summary import receipt_of
from lockgate.storage_core.commit.leases.job_lease import HeldLease, JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.publish.shard_completion import ShardCompleter
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, ExpectedTasks
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord, JobSpec
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.pending_set import AuditVerdict, PendingSet
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.records.shards import total_rows
from lockgate.storage_core.commit.staged_files import staging_dir
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.commit.task.task_commit import expected_digest, freeze_tasks
from lockgate.storage_core.concurrency import Progress, Together, no_progress
from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    LockgateError,
    OutcomeUnknownError,
)
from lockgate.storage_core.forks import ForkGuard
from lockgate.storage_core.ids import (
    AttemptId,
    JobAttemptId,
    JobId,
    ShortId,
    TaskId,
    Token,
    check_id,
    new_attempt_id,
    new_job_attempt_id,
    new_token,
)
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store

LOG: Final = logging.getLogger("lockgate.job")


class Job:
    """One run that writes a destination, as one process sees it. Attempts may be used from several threads.

    As a context manager, a normal exit suspends an undecided job for its next step. An exception aborts the
    job, except if the job is decided, its outcome is unknown, another driver has taken it over, or the store
    failed: then the job is left unchanged for a retry or for recovery.
    """

    def __init__(
        self,
        folder: JobFolder,
        record: JobRecord,
        *,
        job_attempt: JobAttemptId | None,
        settings: Settings,
        clock: Clock,
        progress: Progress = no_progress,
        is_driver: bool = False,
        ended: Ended | None = None,
    ) -> None:
        self._ended = ended  # known only of a committed job whose folder was deleted
        self._folder = folder
        self._record = record
        self._job_attempt = job_attempt
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._is_driver = is_driver
        self._leases = LeasesByJob(settings, clock)
        self._lease: HeldLease | None = None
        self._token: Token = new_token()
        self._committing = threading.Lock()
        self._fork_guard = ForkGuard(f"job {record.job_id}")

    @property
    def job_id(self) -> JobId:
        """Id of the job: `<name>-g<generation>`."""
        return self._record.job_id

    @property
    def short_id(self) -> ShortId:
        """Short id that is part of every file name of the job."""
        return self._record.short_id

    @property
    def destination(self) -> str:
        """URL of the destination."""
        return self._folder.store.url

    @property
    def store(self) -> Store:
        """Store, opened at the destination."""
        return self._folder.store

    @property
    def record(self) -> JobRecord:
        """Content of `job.json`."""
        return self._record

    @property
    def spec(self) -> JobSpec:
        """Options of the job."""
        return self._record.spec

    @property
    def job_attempt(self) -> JobAttemptId:
        """Run of the driver whose tasks a commit includes.

        If this process was given none, it is that of the lease, which the newest driver holds. Without a
        lease it is the newest one in the store, or a new one if nothing was written yet.
        """
        if self._job_attempt is None:
            leased = self._leases.look(self._folder, self._record).job_attempt
            self._job_attempt = leased or newest_job_attempt(self._folder) or new_job_attempt_id()
        return self._job_attempt

    @property
    def staging_dir(self) -> str:
        """Staging directory of this job. It is deleted when the job ends."""
        return str(staging_dir(self._record, self._settings))

    @property
    def receipt(self) -> Receipt | None:
        """Receipt of the publication; None if the job has not published."""
        return receipt_of(self._folder) if self._ended is None else self._ended.receipt

    def phase(self) -> JobPhase:
        """Read the job's phase from the store."""
        return self._folder.phase() if self._ended is None else JobPhase.COMMITTED

    def take_lease(self) -> None:
        """Take the job's lease and renew it until the job is suspended or closed.

        The previous holder is fenced: its next renewal, task commit or decision fails.

        Raises:
            JournalUnavailableError: The job's journal cannot be reached; nothing was changed.
        """
        self._held_lease()

    def share(self) -> None:
        """Suspend the job for its job attempt, unless that job attempt already has the lease.

        For a driver with several short-lived processes, any of which may be the first. An earlier driver is
        fenced.
        """
        view = self._leases.look(self._folder, self._record)
        is_ours = view.job_attempt == self.job_attempt
        if not is_ours or view.state not in {JobLeaseState.LIVE, JobLeaseState.SUSPENDED}:
            with suppress(FencedError):  # another process of this driver has suspended it at the same time
                self.suspend()

    def attempt(
        self,
        task_id: str,
        attempt_id: str | None = None,
        *,
        input_digest: str | None = None,
        try_number: int = 0,
    ) -> Attempt:
        """Begin an attempt of a task.

        Of several attempts that commit, the job commit takes the one with the greatest try number, and of
        these the one that committed last. No clock matters.

        Args:
            task_id: Id of the task, the same for all its attempts: letters, digits and `._=+-`.
            attempt_id: Id of the attempt, different for each one; random by default.
            input_digest: Digest of the task's input; by default that of the expected task, if any.
            try_number: Number of the try, as the scheduler counts it (Airflow's `ti.try_number`, Celery's
                `request.retries`): a retry then counts even if the try before it is still running and
                commits later. Give it for every try of a task, or for none.

        Raises:
            ConflictError: The job is decided or has ended.
            InvalidInputError: An id or the try number is invalid.
        """
        if try_number < 0:
            raise InvalidInputError(f"try_number={try_number} must not be negative; no attempt was begun")
        task = TaskId(check_id("task", task_id))
        attempt = AttemptId(check_id("attempt", attempt_id or new_attempt_id()))
        with Together(self._settings.near_calls) as together:
            phase = together.start(self.phase)
            if input_digest is None:
                input_digest = expected_digest(self._folder, self.job_attempt, task)
        if phase.result() is not JobPhase.OPEN:
            raise ConflictError(
                f"job {self.job_id} at {self.destination} is {phase.result()}: it takes no more data; "
                "read job.receipt, or open the job again to recompute its data"
            )
        return Attempt(
            self._folder,
            self._record,
            job_attempt=self.job_attempt,
            task_id=task,
            attempt_id=attempt,
            input_digest=input_digest,
            try_number=try_number,
            settings=self._settings,
            clock=self._clock,
            check_driver=self._check_driver,
            on_committed=self._register,
        )

    def abort_attempt(self, task_id: str, attempt_id: str, reason: str = "") -> None:
        """Exclude an attempt from the commit by its ids, from any process, even if it still commits.

        Its uploads are aborted when the job ends.
        """
        self._folder.exclude_attempt(TaskId(task_id), AttemptId(attempt_id), reason)

    def expect(self, tasks: Sequence[ExpectedTask], *, staging: str | None = None) -> ExpectedTasks:
        """Freeze the task list of this job attempt; the commit then requires each of these tasks.

        Args:
            tasks: Tasks, each with a different id.
            staging: Directory of the tasks' files.

        Returns:
            The stored list: this one, or an equal one that was stored before.

        Raises:
            ConflictError: This job attempt has another list, or two tasks have the same id.
        """
        return freeze_tasks(self._folder, self.job_attempt, tasks, staging)

    def expected(self) -> ExpectedTasks | None:
        """Return the frozen task list of this job attempt; None if it has none."""
        return self._folder.expected(self.job_attempt)

    def pending_sets(self, task_id: str | None = None) -> Iterator[PendingSet]:
        """Yield the pending sets of this job attempt, or of one of its tasks, without aborted attempts."""
        task = None if task_id is None else TaskId(task_id)
        aborted = self._folder.aborted_attempts(task)
        for found, *_ in self._folder.pending_sets(task):
            is_aborted = (found.task_id, found.attempt_id) in aborted
            if found.job_attempt == self.job_attempt and not is_aborted:
                yield found

    def chosen_digest(self) -> str:
        """Return the digest of the pending sets that a commit would include now.

        An audit takes it before it reads the data, and passes it to `record_audit`.
        """
        return audit.chosen(self._folder, self.job_attempt)

    def chosen_pending_sets(self) -> tuple[str, list[PendingSet]]:
        """Return `chosen_digest()` and the pending sets that it is of."""
        return audit.chosen_pending_sets(self._folder, self.job_attempt)

    def record_audit(
        self,
        *,
        chosen: str,
        passed: bool,
        suite: str,
        summary: Mapping[str, str | int | float | bool | None],
    ) -> AuditVerdict:
        """Store an audit verdict for exactly the pending sets that the audit read, and return the stored one.

        The first verdict for the same data is final.

        Args:
            chosen: `chosen_digest()` from before the audit began to read.
            passed: Whether the data passed.
            suite: Name of the suite.
            summary: Counts and failures, for people.

        Raises:
            ConflictError: A task has committed since: the audit did not read what a commit would include now.
        """
        return audit.record(
            self._folder,
            self.job_attempt,
            digest=chosen,
            passed=passed,
            suite=suite,
            summary=summary,
            now_s=self._clock.now_s(),
        )

    def commit(
        self,
        *,
        winners: Mapping[TaskId, AttemptId] | None = None,
        complete: ShardCompleter | None = None,
        allow_empty: bool = False,
        replaces: Mapping[str, RemovedFile] | None = None,
        restores: Manifest | None = None,
    ) -> Receipt:
        """Make all files of the job visible, or none. A repeated call returns the same receipt.

        Several threads may call it: one commits, and the others wait for it and return the same receipt.

        Args:
            winners: Attempt to commit for each task, if the driver knows it (Spark).
            complete: Completes shards elsewhere, such as on Celery workers; by default in threads.
            allow_empty: Commit a job of which no task has committed and that has no task list. The process
                that opened the job may always do so.
            replaces: For mode `compact`: the files that the job removes, as `named_files.as_read` returned
                them before they were read. If one has changed since, the job is aborted.

            restores: For mode `revert`: what the job makes live, as the log has it after an earlier turn.

        Raises:
            ConflictError: No task has committed, and `allow_empty` is not set; the job stays undecided.
            JobFailedError: The job was aborted, or was reverted because a file was lost for good.
            FencedError: Another driver has taken the job over; this one changed nothing.
            OutcomeUnknownError: Nothing was deleted; recovery brings the job to its end.
            NotAppliedError: The data, the audit or the destination do not allow it; the job was aborted. If
                the store failed or another job has the turn, the job stays undecided: try again.
        """
        # In a fork, the thread that held the lock is gone.
        if self._ended is not None and self._ended.receipt is not None:
            return self._ended.receipt
        for option, given, mode in (("replaces", replaces, "compact"), ("restores", restores, "revert")):
            if given is not None and self.spec.mode != mode:
                raise InvalidInputError(
                    f"{option}= is for mode {mode}; the mode of {self.job_id} is {self.spec.mode}"
                )
        with self._committing if self._fork_guard.is_this else nullcontext():
            may_be_empty = winners is not None or allow_empty or self._is_driver
            return self._commit(winners, complete, replaces, restores, may_be_empty=may_be_empty)

    def _commit(
        self,
        winners: Mapping[TaskId, AttemptId] | None,
        complete: ShardCompleter | None,
        replaces: Mapping[str, RemovedFile] | None,
        restores: Manifest | None,
        *,
        may_be_empty: bool,
    ) -> Receipt:
        was_held = self._lease is not None
        try:
            receipt = JobCommit(
                self._context(complete),
                job_attempt=self.job_attempt,
                winners=winners,
                may_be_empty=may_be_empty,
                token=self._token,
                leases=self._leases,
                take_lease=self._held_lease,
                replaces=replaces,
                restores=restores,
            ).run()
        except BaseException as error:
            self._log("commit failed", detail=f"{type(error).__name__}: {error}")
            if not was_held:
                self.close()
            raise
        self.close()
        return receipt

    def abort(self, reason: str = "by request") -> JobPhase:
        """Decide to abort, delete all that the job wrote, and return the phase. Also ends a quarantine.

        A job that is decided to commit is not aborted; the log has a warning.
        """
        if self.phase() in TERMINAL:
            return self.phase()
        decision = decide_abort(self._folder, reason=reason, token=self._token, clock=self._clock)
        if decision.verdict != "commit":
            roll_forward(self._context(), discard=True)
        else:
            LOG.warning("job %s is decided to commit: not aborted (%s)", self.job_id, reason)
        self.close()
        return self.phase()

    def revert(self, reason: str = "by request") -> JobPhase:
        """Abort the job even if its commit is decided, as long as it is not published; return the phase.

        For a job that the store never lets complete. Its files are deleted, and no reader of the manifest has
        seen them. If its commit publishes it meanwhile, it stays published.
        """
        decision, phase = self._folder.decision(), self.phase()
        if decision is None or decision.turn is None or phase not in {JobPhase.DECIDED, JobPhase.REVERTING}:
            return self.abort(reason)
        if phase is JobPhase.DECIDED:
            pass_turn(self.store, decision.turn, self.job_id, self._clock, reason)
        return self.finish()

    def finish(self) -> JobPhase:
        """Bring a decided job to its end, and return the phase. An undecided job is not changed."""
        if self._folder.decision() is not None:
            roll_forward(self._context())
        return self.phase()

    def suspend(self, timeout_s: float | None = None) -> None:
        """Release the undecided job for its next step, which must begin within `timeout_s` (default 24 h)."""
        lease, self._lease = self._held_lease(), None
        lease.suspend(self._settings.suspend_timeout_s if timeout_s is None else timeout_s)
        self._log("suspended", job_attempt=self.job_attempt)

    def close(self) -> None:
        """Stop renewing the lease, if this process holds it; the lease then lapses."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.abandon()

    def __reduce__(self) -> NoReturn:
        raise InvalidInputError(
            f"job {self.job_id} cannot be pickled or copied: this process holds its lease; pass "
            "(job.destination, job.job_id) and call attach_job(destination, job_id) in the other process"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._fork_guard.is_this:
            return  # a forked child leaves the block; the job belongs to its parent
        try:
            if self._lease is None:
                return
            if error is None:
                if self.phase() is JobPhase.OPEN:
                    self.suspend()
            elif not isinstance(error, (OutcomeUnknownError, FencedError, *RETRYABLE_ERRORS)):
                self._abort_after(error)
        finally:
            self.close()

    def _abort_after(self, error: BaseException) -> None:
        try:
            if self.phase() in TERMINAL:
                return  # the failed commit has aborted the job already
            self._held_lease().check()  # a driver that took the job over owns it; do not abort its job
            self.abort(f"{type(error).__name__}: {error}")
        except LockgateError as second:
            # The caller gets the first error. Recovery finds that the lease has lapsed and aborts the job.
            LOG.warning("job %s could not be aborted now (%s): recovery will", self.job_id, second)

    def _held_lease(self) -> HeldLease:
        if self._lease is None:
            self._lease = self._leases.take(self._folder, self._record, self.job_attempt)
            self._log("opened", job_attempt=self.job_attempt)
        return self._lease

    def _check_driver(self) -> None:
        """Raise if the driver of this process is no longer the job's driver."""
        if self._lease is not None:
            self._lease.check(self._settings.lease_renew_s)
        else:
            self._leases.check_driver(self._folder, self._record, self.job_attempt)

    def _register(self, committed: PendingSet) -> None:
        """Record a task commit in the registry and the job's log."""
        if self._record.journal and self._settings.has_journal:
            from lockgate.storage_core.commit.leases.registration import register_task  # noqa: PLC0415 - SQLAlchemy is slow

            register_task(self._folder, self._record, committed, settings=self._settings, clock=self._clock)
        self._log(
            "task committed",
            task_id=committed.task_id,
            attempt_id=committed.attempt_id,
            job_attempt=committed.job_attempt,
            files=len(committed.files),
            rows=total_rows(file.rows for file in committed.files),
            size_bytes=sum(file.upload.size for file in committed.files),
        )

    def _log(self, event: EventName, **facts: Any) -> None:
        record_event(self._folder, self._record, event, self._settings, self._clock, **facts)

    def _context(self, complete: ShardCompleter | None = None) -> CommitContext:
        return CommitContext(
            folder=self._folder,
            job=self._record,
            settings=self._settings,
            clock=self._clock,
            progress=self._progress,
            completer=complete,
        )
