"""Read and write the records of one job, and derive its phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, R, Record, decode, digest
from lockgate.storage_core.commit.records.create_if_absent import claim, find, read
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTasks
from lockgate.storage_core.commit.records.generations import recorded_end
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.commit.records.pending_set import AbortedAttempt, AuditVerdict, PendingSet
from lockgate.storage_core.commit.records.phase import JobPhase, phase_of
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended, Report
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    MalformedRecordError,
    ObjectNotFoundError,
)
from lockgate.storage_core.ids import (
    AttemptId,
    JobAttemptId,
    JobId,
    TaskId,
    check_id,
    is_short_id,
    split_job_id,
)
from lockgate.storage_core.stores import ObjectInfo, Store


class SavedSet(NamedTuple):
    """A pending set, its digest, the time of its creation by the store's clock, and its size in bytes."""

    record: PendingSet
    digest: str
    created_s: float
    size: int = 0


class EndedAttempts(NamedTuple):
    """Attempts of one task that have a pending set, and those that never count."""

    committed: set[AttemptId]
    aborted: set[AttemptId]


def aborted_attempt(info: ObjectInfo) -> tuple[TaskId, AttemptId] | None:
    """Return the attempt of which this object says that it never counts; None for other objects."""
    if not info.key.endswith(".aborted"):
        return None
    _, task, name = info.key.rsplit("/", 2)
    return TaskId(task), AttemptId(name.removesuffix(".aborted"))


@dataclass(frozen=True)
class JobFolder:
    """The records of one job in one store."""

    store: Store
    job_id: JobId

    @property
    def prefix(self) -> str:
        """Key prefix of the folder, ending in `/`."""
        return layout.job_folder(self.job_id)

    def key(self, name: str) -> str:
        """Return the key of a record of this job."""
        return self.prefix + name

    def job(self) -> JobRecord:
        """Return `job.json`.

        Raises:
            ObjectNotFoundError: The destination has no such job.
        """
        try:
            record = read(self.store, JobRecord, self.key("job.json"))
        except ObjectNotFoundError:
            end = recorded_end(self.store, self.job_id)
            is_gone = (
                "" if end is None else f": it has ended ({end.phase}), and a sweep has deleted its folder"
            )
            raise ObjectNotFoundError(
                f"no job {self.job_id} at {self.store.url}{is_gone}; `lockgate jobs list {self.store.url}` "
                "shows them"
            ) from None
        if (record.name, record.generation) != split_job_id(self.job_id) or record.job_id != self.job_id:
            raise MalformedRecordError(f"{self.key('job.json')}: job_id, name or generation is another job's")
        if not is_short_id(record.short_id):
            raise MalformedRecordError(f"{self.key('job.json')}: field short_id is not a short id")
        return record

    def decision(self) -> Decision | None:
        """Return `COMMIT_STARTED`, or None while the job is undecided."""
        key = self.key("COMMIT_STARTED")
        found = self._find(Decision, key)
        if found is not None and found.verdict == "commit" and (found.plan is None or found.turn is None):
            raise MalformedRecordError(f"{key}: a commit without plan or turn")
        return found

    def outcome(self, decision: Decision | None) -> Outcome | None:
        """Return the outcome of the turn that a decision to commit names."""
        if decision is None or decision.turn is None:
            return None
        key = layout.turn_outcome(decision.turn)
        found = self._find(Outcome, key)
        if found is not None and found.turn != decision.turn:
            raise MalformedRecordError(f"{key}: field turn is {found.turn}")
        return found

    def ended(self) -> tuple[Ended | None, Ended | None]:
        """Return `COMMIT_SUCCESS` and `COMMIT_FAIL`, each None if it is absent."""
        return self._marker("COMMIT_SUCCESS", "committed"), self._marker("COMMIT_FAIL", "failed")

    def _marker(self, name: str, ended: str) -> Ended | None:
        found = self._find(Ended, self.key(name))
        if found is not None and found.ended != ended:
            raise MalformedRecordError(f"{self.key(name)}: field ended is {found.ended!r}")
        return found

    def phase(self) -> JobPhase:
        """Return the job's phase, derived from its markers."""
        decision = self.decision()
        if decision is None:
            return JobPhase.OPEN  # the common case: one request instead of three
        return phase_of(decision, self.outcome(decision), *self.ended())

    def expected(self, job_attempt: JobAttemptId) -> ExpectedTasks | None:
        """Return the frozen task list of a job attempt, or None."""
        return self._find(ExpectedTasks, self.key(f"attempts/{check_id('job attempt', job_attempt)}.json"))

    def attempts(self) -> Iterator[ExpectedTasks]:
        """Yield the frozen task lists of all job attempts."""
        for info in self._list("attempts/"):
            found = find(self.store, ExpectedTasks, info.key) if info.key.endswith(".json") else None
            if found is not None:
                yield found

    def listed_attempts(self) -> set[JobAttemptId]:
        """Return the job attempts that have a frozen task list."""
        names = (info.key.rpartition("/")[2] for info in self._list("attempts/"))
        return {JobAttemptId(name.removesuffix(".json")) for name in names if name.endswith(".json")}

    def pending_set_key(self, task: TaskId, attempt: AttemptId) -> str:
        """Return the key of an attempt's pending set."""
        return self.key(f"tasks/{check_id('task', task)}/{check_id('attempt', attempt)}.pendingset")

    def pending_sets(self, task: TaskId | None = None, *, at_once: int = 1) -> Iterator[SavedSet]:
        """Yield the pending sets of all tasks, or of one; `at_once` of them are read and kept at a time.

        Raises:
            MalformedRecordError: A pending set is not readable, or belongs to another attempt.
        """
        found = (info for info in self.task_records(task) if info.key.endswith(".pendingset"))
        return self.read_sets(found, at_once=at_once)

    def read_sets(self, listed: Iterable[ObjectInfo], *, at_once: int = 1) -> Iterator[SavedSet]:
        """Yield listed pending sets; see `pending_sets`."""

        def read(info: ObjectInfo) -> SavedSet:
            return SavedSet(*self.pending_set(info.key), info.modified_s, info.size)

        return in_order(read, listed, at_once)

    def ended_attempts(self, task: TaskId) -> EndedAttempts:
        """Return which attempts of a task have committed, and which were aborted, from one listing."""
        names = [info.key.rpartition("/")[2].rpartition(".") for info in self.task_records(task)]
        return EndedAttempts(
            committed={AttemptId(name) for name, _, kind in names if kind == "pendingset"},
            aborted={AttemptId(name) for name, _, kind in names if kind == "aborted"},
        )

    def exclude_attempt(self, task: TaskId, attempt: AttemptId, reason: str) -> None:
        """Record that the commit does not include this attempt."""
        record = AbortedAttempt(job_id=self.job_id, task_id=task, attempt_id=attempt, reason=reason)
        key = f"tasks/{check_id('task', task)}/{check_id('attempt', attempt)}.aborted"
        claim(self.store, self.key(key), record)

    def aborted_attempts(self, task: TaskId | None = None) -> set[tuple[TaskId, AttemptId]]:
        """Return the ids of aborted attempts, of all tasks or of one."""
        return {found for info in self.task_records(task) if (found := aborted_attempt(info)) is not None}

    def task_records(self, task: TaskId | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects of the records of all tasks, or of one."""
        return self._list("tasks/" if task is None else f"tasks/{check_id('task', task)}/")

    def _list(self, name_prefix: str) -> Iterator[ObjectInfo]:
        return (info for page in self.store.pages(self.key(name_prefix)) for info in page)

    def pending_set(self, key: str) -> tuple[PendingSet, str]:
        """Return the pending set with this key, as it was listed, and its digest.

        Raises:
            MalformedRecordError: It is not readable, or belongs to another attempt.
        """
        data = self.store.get(key, length=MAX_RECORD_BYTES + 1)
        found = decode(PendingSet, data, key)
        self._check_attempt(found, key)
        return found, digest(data)

    def _check_attempt(self, found: PendingSet, key: str) -> None:
        self._check_owner(found, key)
        if self.pending_set_key(found.task_id, found.attempt_id) != key:
            raise MalformedRecordError(
                f"{key}: fields task_id and attempt_id are {found.task_id}/{found.attempt_id}"
            )

    def audit(self, chosen_digest: str) -> AuditVerdict | None:
        """Return the audit verdict for the chosen pending sets, or None."""
        key = self.audit_key(chosen_digest)
        found = self._find(AuditVerdict, key)
        if found is not None and found.chosen_digest != chosen_digest:
            raise MalformedRecordError(f"{key}: field chosen_digest is of other data")
        return found

    def newest_audit(self) -> AuditVerdict | None:
        """Return the audit verdict that was written last, whatever data it is of; None if there is none."""
        page = next(iter(self.store.pages(self.key("audits/"))), ())
        newest = max(page, key=lambda info: info.modified_s, default=None)
        return None if newest is None else self._find(AuditVerdict, newest.key)

    def audit_key(self, chosen_digest: str) -> str:
        """Return the key of the audit verdict for the chosen pending sets."""
        return self.key(f"audits/{check_id('digest', chosen_digest)}.json")

    def has_lease(self) -> bool:
        """Return whether `lease.json` exists; an ended job that has it is not cleaned up."""
        try:
            self.store.head(self.key("lease.json"))
        except ObjectNotFoundError:
            return False
        return True

    def report(self) -> Report | None:
        """Return `report.json`, or None before the job's end."""
        return find(self.store, Report, self.key("report.json"))

    def _find(self, kind: type[R], key: str) -> R | None:
        found = find(self.store, kind, key)
        if found is not None:
            self._check_owner(found, key)
        return found

    def _check_owner(self, record: Record, key: str) -> None:
        owner = getattr(record, "job_id", self.job_id)
        if owner != self.job_id:
            raise MalformedRecordError(f"{key}: field job_id is {owner}, not {self.job_id}")
