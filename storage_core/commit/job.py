"""A job: one run that writes a destination. The public face of the commit protocol.

    with open_job("s3://lake/sales", "sales-2026-11-21", mode="append") as job:
        with job.attempt("part-0") as attempt, attempt.open("day=1/a.parquet") as file:
            file.write(...)
        receipt = job.commit()

Nothing is visible before `commit`; whatever crashes is finished or swept by recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.decide.decision import decide_abort
from lockgate.storage_core.commit.decide.task_selection import choose, chosen_digest, newest_job_attempt
from lockgate.storage_core.commit.job_commit import STORE_TROUBLE, commit_job
from lockgate.storage_core.commit.leases.job_leases import leases_for
from lockgate.storage_core.commit.leases.protocol import Hold, JobLeaseState
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.publish.shard_completion import ShardCompleter
from lockgate.storage_core.commit.records.job import JobRecord, JobSpec
from lockgate.storage_core.commit.records.job_folder import JobFolder, claim
from lockgate.storage_core.commit.records.log_entries import Receipt
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.records.task import (
    AbortedAttempt,
    AuditVerdict,
    ExpectedTask,
    ExpectedTasks,
    PendingSet,
)
from lockgate.storage_core.commit.staged_files.directories import staging_dir
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import ConflictError, FencedError, LockgateError, OutcomeUnknownError
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
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store

LOG: Final = logging.getLogger("lockgate.job")


class Job:
    """One run that writes a destination, seen from one process.

    As a context manager: a plain exit without a decision parks the job for its next step. An exception
    aborts it, unless it is decided, its outcome is unknown, another driver has taken it over, or the store
    was in trouble: then it stays as it is, for another try or for recovery. Attempts may be used from
    several threads.
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
    ) -> None:
        self._folder = folder
        self._record = record
        self._job_attempt = job_attempt
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._leases = leases_for(settings, clock)
        self._keeper: Hold | None = None
        self._token: Token = new_token()
        self._process = ForkGuard(f"job {record.job_id}")

    @property
    def job_id(self) -> JobId:
        """`<name>-g<generation>`."""
        return self._record.job_id

    @property
    def short_id(self) -> ShortId:
        """What every file name of the job carries."""
        return self._record.short_id

    @property
    def destination(self) -> str:
        """URL of the destination."""
        return self._folder.store.url

    @property
    def store(self) -> Store:
        """The store, opened at the destination."""
        return self._folder.store

    @property
    def record(self) -> JobRecord:
        """The job's identity, as it stands in `job.json`."""
        return self._record

    @property
    def spec(self) -> JobSpec:
        """What the job was asked to do."""
        return self._record.spec

    @property
    def job_attempt(self) -> JobAttemptId:
        """The run of the driver whose tasks a commit takes.

        Where this process was given none, the one that the lease names, for that is the newest driver's;
        without a lease the newest in the store, or a new one where nothing was written yet.
        """
        if self._job_attempt is None:
            leased = self._leases.look(self._folder, self._record).job_attempt
            self._job_attempt = leased or newest_job_attempt(self._folder) or new_job_attempt_id()
        return self._job_attempt

    @property
    def staging_dir(self) -> str:
        """The job's own staging directory; it goes, whole, when the job ends."""
        return str(staging_dir(self._record, self._settings))

    @property
    def receipt(self) -> Receipt | None:
        """What the job published, None if it has not."""
        outcome = self._folder.outcome(self._folder.decision())
        return None if outcome is None else outcome.receipt

    def phase(self) -> JobPhase:
        """Read where the job stands."""
        return self._folder.phase()

    def hold(self) -> None:
        """Take the job's lease and renew it until the job is parked or closed.

        Whoever held it before is fenced: its next renewal, task commit or decision fails.

        Raises:
            JournalUnavailableError: The job's journal cannot be reached; nothing was changed.
        """
        if self._keeper is None:
            self._keeper = self._leases.hold(self._folder, self._record, self.job_attempt)

    def share(self) -> None:
        """Park the job in its job attempt's name, unless it stands in that name already.

        For a driver whose processes come and go, and may all be the first. An earlier driver is fenced.
        """
        view = self._leases.look(self._folder, self._record)
        ours = view.job_attempt == self.job_attempt
        if not ours or view.state not in {JobLeaseState.LIVE, JobLeaseState.PARKED}:
            with suppress(FencedError):  # by another process of this driver, in the same instant
                self.park()

    def attempt(
        self, task_id: str, attempt_id: str | None = None, *, input_digest: str | None = None
    ) -> Attempt:
        """Begin one try at a task.

        Args:
            task_id: The same for every try: letters, digits and `._=+-`.
            attempt_id: Different for every try; random by default.
            input_digest: Equal only for equal input; by default the expected task's, if there is a list.

        Raises:
            ConflictError: The job is decided or has ended.
        """
        if self.phase() is not JobPhase.OPEN:
            raise ConflictError(
                f"job {self.job_id} at {self.destination} is {self.phase()}: it takes no more data; "
                "look at job.receipt, or open the job again for a deliberate recomputation"
            )
        task = TaskId(check_id("task", task_id))
        if input_digest is None:
            input_digest = self._expected_digest(task)
        epoch = self._keeper.stamp.epoch if self._keeper is not None else 0
        return Attempt(
            self._folder,
            self._record,
            job_attempt=self.job_attempt,
            task_id=task,
            attempt_id=AttemptId(check_id("attempt", attempt_id or new_attempt_id())),
            stamp=Stamp(epoch, int(self._clock.now_s() * 1_000_000)),
            input_digest=input_digest,
            settings=self._settings,
            clock=self._clock,
            check_driver=self._check_driver,
            on_committed=self._register,
        )

    def abort_attempt(self, task_id: str, attempt_id: str, reason: str = "") -> None:
        """Rule an attempt out by its ids, from any process: it is never chosen, whatever it still saves.

        Its uploads go at the job's end.
        """
        record = AbortedAttempt(
            job_id=self.job_id, task_id=TaskId(task_id), attempt_id=AttemptId(attempt_id), reason=reason
        )
        key = f"tasks/{check_id('task', task_id)}/{check_id('attempt', attempt_id)}.aborted"
        claim(self.store, self._folder.key(key), record)

    def expect(self, tasks: Sequence[ExpectedTask], *, staging: str | None = None) -> ExpectedTasks:
        """Freeze the task list of this job attempt; the commit then wants each of them.

        Args:
            tasks: Each id once.
            staging: The directory that the tasks' files lie in.

        Returns:
            The list that stands: this one, or an equal one from before.

        Raises:
            ConflictError: Another list stands for this job attempt, or a task is named twice.
        """
        if len({task.task_id for task in tasks}) != len(tasks):
            raise ConflictError(f"job {self.job_id}: a task is named twice in the list of expected tasks")
        record = ExpectedTasks(
            job_id=self.job_id,
            job_attempt=self.job_attempt,
            stamp=Stamp(0, int(self._clock.now_s() * 1_000_000)),
            staging=staging,
            tasks=tuple(tasks),
        )
        key = self._folder.key(f"attempts/{check_id('job attempt', self.job_attempt)}.json")
        standing = claim(self.store, key, record)
        if (standing.tasks, standing.staging) != (record.tasks, record.staging):
            raise ConflictError(
                f"job {self.job_id}: job attempt {self.job_attempt} has another task list already; "
                "a new run of the driver needs a new job attempt"
            )
        return standing

    def expected(self) -> ExpectedTasks | None:
        """Return the frozen task list of this job attempt, None if it has none."""
        return self._folder.expected(self.job_attempt)

    def pending_sets(self, task_id: str | None = None) -> Iterator[PendingSet]:
        """Yield the pending sets of this job attempt, or of one task in it, but for aborted attempts'."""
        task = None if task_id is None else TaskId(task_id)
        aborted = self._folder.aborted_attempts(task)
        for found, _ in self._folder.pending_sets(task):
            ruled_out = (found.task_id, found.attempt_id) in aborted
            if found.job_attempt == self.job_attempt and not ruled_out:
                yield found

    def chosen_digest(self) -> str:
        """Return the digest of the pending sets that a commit would take now; what an audit binds."""
        return chosen_digest(choose(self._folder, self.job_attempt))

    def record_audit(
        self, *, passed: bool, suite: str, summary: Mapping[str, str | int | float | bool | None]
    ) -> AuditVerdict:
        """Bind a verdict to exactly the pending sets that stand now; returns the one that stands.

        A verdict is given once: the first one over the same data stays.
        """
        wanted = self.chosen_digest()
        verdict = AuditVerdict(
            job_id=self.job_id,
            chosen_digest=wanted,
            passed=passed,
            suite=suite,
            summary=dict(summary),
            decided_s=self._clock.now_s(),
        )
        return claim(self.store, self._folder.audit_key(wanted), verdict)

    def commit(
        self,
        *,
        winners: Mapping[TaskId, AttemptId] | None = None,
        complete: ShardCompleter | None = None,
    ) -> Receipt:
        """Make all of the job visible, or nothing. Safe to call again: it returns the same receipt.

        Args:
            winners: The attempt of each task that counts, where the driver knows (Spark).
            complete: Completes shards elsewhere, such as on Celery workers; by default threads here do.

        Raises:
            JobFailedError: It was decided otherwise: aborted, or reverted since a file was lost for good.
            FencedError: Another driver has taken the job over; this one changed nothing.
            OutcomeUnknownError: Recovery settles it; nothing was deleted.
            NotAppliedError: The data, the gate or the destination do not allow it: the job is aborted. If
                the store refused for now, or another job holds the turn, it stays undecided: try again.
        """
        held_before = self._keeper is not None
        committed = False
        try:
            receipt = commit_job(
                self._work(complete),
                job_attempt=self.job_attempt,
                winners=winners,
                token=self._token,
                leases=self._leases,
                keeper=self._held(),
            )
            committed = True
        finally:
            if committed or not held_before:
                self.close()
        return receipt

    def abort(self, reason: str = "by request") -> JobPhase:
        """Decide to abort and drop all that the job wrote; once the commit is decided, only says so.

        Returns:
            Where the job stands then.
        """
        if self.phase() in TERMINAL:
            return self.phase()
        decision = decide_abort(self._folder, reason=reason, token=self._token, clock=self._clock)
        if decision.verdict == "abort":
            roll_forward(self._work(None))
        else:
            LOG.warning("job %s is decided to commit: not aborted (%s)", self.job_id, reason)
        self.close()
        return self.phase()

    def finish(self) -> JobPhase:
        """Bring a decided job to its end; an undecided one is left as it is. Returns where it stands."""
        if self._folder.decision() is not None:
            roll_forward(self._work(None))
        return self.phase()

    def park(self, timeout_s: float | None = None) -> None:
        """Leave the undecided job to its next step, which has `timeout_s` to come (24 h by default)."""
        keeper, self._keeper = self._held(), None
        keeper.park(self._settings.park_timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Stop holding the job; a lease that stands lapses by itself."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._process.is_this:
            return  # a fork that leaves the block; the job is its parent's
        try:
            if self._keeper is None:
                return
            if error is None:
                if self.phase() is JobPhase.OPEN:
                    self.park()
            elif not isinstance(error, (OutcomeUnknownError, FencedError, *STORE_TROUBLE)):
                self._abort_after(error)
        finally:
            self.close()

    def _abort_after(self, error: BaseException) -> None:
        try:
            if self.phase() in TERMINAL:
                return  # its commit failed, and has aborted it already
            self._held().check()  # whoever took the job over owns it: it is not ours to abort
            self.abort(f"{type(error).__name__}: {error}")
        except LockgateError as second:
            # The first error is the one to report; recovery finds the job lapsed and aborts it.
            LOG.warning("job %s could not be aborted now (%s): recovery will", self.job_id, second)

    def _expected_digest(self, task: TaskId) -> str:
        expected = self.expected()
        tasks = expected.tasks if expected is not None else ()
        return next((known.input_digest for known in tasks if known.task_id == task), "")

    def _held(self) -> Hold:
        self.hold()
        if self._keeper is None:
            raise AssertionError(self.job_id)
        return self._keeper

    def _check_driver(self) -> None:
        """Raise if the driver that this process works for is not the job's driver any more."""
        if self._keeper is not None:
            self._keeper.check(self._settings.lease_renew_s)
            return
        leased = self._leases.look(self._folder, self._record).job_attempt
        if leased not in {None, self.job_attempt}:
            raise FencedError(
                f"job {self.job_id} at {self.destination}: job attempt {self.job_attempt} lost the job to "
                f"{leased}; its tasks do not commit any more; nothing was changed"
            )

    def _register(self, committed: PendingSet) -> None:
        """Tell the registry of a task commit."""
        if self._record.journal and self._settings.has_journal:
            from lockgate.storage_core.commit.leases.registry import register_task  # noqa: PLC0415 - SQLAlchemy is slow

            register_task(self._folder, self._record, committed, settings=self._settings, clock=self._clock)

    def _work(self, complete: ShardCompleter | None) -> CommitContext:
        return CommitContext(
            folder=self._folder,
            job=self._record,
            settings=self._settings,
            clock=self._clock,
            progress=self._progress,
            completer=complete,
        )
