"""A job's folder: reads and writes the records of one job, and tells its phase.

Every record that decides something is created if absent and read back after a lost answer; `claim` is the
one place where that happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, R, Record, decode, digest, encode
from lockgate.storage_core.commit.records.job import (
    AuditVerdict,
    Decision,
    Ended,
    ExpectedTasks,
    JobRecord,
    Outcome,
    PendingSet,
    Report,
)
from lockgate.storage_core.commit.records.phase import JobPhase, phase_of
from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    JournalUnavailableError,
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.ids import (
    AttemptId,
    JobAttemptId,
    JobId,
    TaskId,
    check_id,
    is_job_id,
    is_short_id,
    split_job_id,
)
from lockgate.storage_core.stores import Store

CLAIM_TRIES: Final = 5
CREATE_TRIES: Final = 5


def read(store: Store, kind: type[R], key: str) -> R:
    """Read a record that must be there.

    Raises:
        ObjectNotFoundError: It is not.
        MalformedRecordError: It is not what it should be.
    """
    # One byte over the limit is enough to refuse 50 MB of garbage without holding more of it.
    return decode(kind, store.get(key, length=MAX_RECORD_BYTES + 1), key)


def find(store: Store, kind: type[R], key: str) -> R | None:
    """Read a record; None if there is none."""
    try:
        return read(store, kind, key)
    except ObjectNotFoundError:
        return None


def create(store: Store, key: str, data: bytes) -> None:
    """Create an object if absent; a store that is busy is asked again, with back-off.

    A refusal had no effect, so asking again cannot meet a first try of its own.

    Raises:
        AlreadyExistsError: There is one.
        StoreUnavailableError: The store was busy for too long; nothing was created.
        OutcomeUnknownError: No answer; read the object back.
    """
    while_busy()(store.create, key, data)


def while_busy(*also: type[LockgateError]) -> Retrying:
    """Return what makes a call again, with back-off, while the store refuses it for now.

    Args:
        also: Further errors after which this call may be made again.
    """
    return Retrying(
        retry=retry_if_exception_type((StoreUnavailableError, *also)),
        stop=stop_after_attempt(CREATE_TRIES),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        reraise=True,
    )


def claim(store: Store, key: str, record: R) -> R:
    """Create a record if absent and return the one that stands: the caller's, or who was first.

    A lost answer is settled by reading back; only the content tells whose record it is, so a record that is
    claimed carries an owner token or is the same from everyone.

    Raises:
        OutcomeUnknownError: After several tries it is still not known what stands there, or the read-back
            after a lost answer was refused.
    """
    lost = False
    for _ in range(CLAIM_TRIES):
        try:
            create(store, key, encode(record))
        except (AlreadyExistsError, OutcomeUnknownError) as error:
            lost = lost or isinstance(error, OutcomeUnknownError)
        except NotAppliedError as error:
            # This try had no effect, but one before it may have had.
            raise _unsettled(store, key, error) if lost else error from None
        else:
            return record
        try:
            standing = find(store, type(record), key)
        except (StoreUnavailableError, AccessDeniedError, JournalUnavailableError) as error:
            raise _unsettled(store, key, error) if lost else error from None
        if standing is not None:
            return standing
        # The lost create had no effect, or not yet: the next try tells.
    raise OutcomeUnknownError(
        f"{store.url}/{key}: creating it gave no answer {CLAIM_TRIES} times and it is not there to be read; "
        "nothing was deleted; try again"
    )


def _unsettled(store: Store, key: str, error: NotAppliedError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{store.url}/{key}: creating it gave no answer, and reading it back was refused ({error}); it may "
        "stand; nothing was deleted; try again"
    )


@dataclass(frozen=True)
class JobFolder:
    """The records of one job in one store."""

    store: Store
    job_id: JobId

    @property
    def prefix(self) -> str:
        """The folder's key prefix, ending in `/`."""
        return layout.job_folder(self.job_id)

    def key(self, name: str) -> str:
        """Key of a record of this job."""
        return self.prefix + name

    def job(self) -> JobRecord:
        """Return `job.json`.

        Raises:
            ObjectNotFoundError: No such job at this destination.
        """
        try:
            record = read(self.store, JobRecord, self.key("job.json"))
        except ObjectNotFoundError:
            raise ObjectNotFoundError(
                f"no job {self.job_id} at {self.store.url}; `lockgate jobs list {self.store.url}` shows them"
            ) from None
        if (record.name, record.generation) != split_job_id(self.job_id) or record.job_id != self.job_id:
            raise MalformedRecordError(f"{self.key('job.json')}: job_id, name or generation is another job's")
        if not is_short_id(record.short_id):
            raise MalformedRecordError(f"{self.key('job.json')}: field short_id is not a short id")
        return record

    def decision(self) -> Decision | None:
        """Return `COMMIT_STARTED`, None while the job is undecided."""
        found = find(self.store, Decision, self.key("COMMIT_STARTED"))
        if found is not None:
            self._own(found, self.key("COMMIT_STARTED"))
            if found.verdict == "commit" and (found.plan is None or found.turn is None):
                raise MalformedRecordError(f"{self.key('COMMIT_STARTED')}: a commit without plan or turn")
        return found

    def outcome(self, decision: Decision | None) -> Outcome | None:
        """Return the outcome of the turn that a decision to commit names."""
        if decision is None or decision.turn is None:
            return None
        found = find(self.store, Outcome, layout.turn_outcome(decision.turn))
        if found is not None:
            self._own(found, layout.turn_outcome(decision.turn))
            if found.turn != decision.turn:
                raise MalformedRecordError(
                    f"{layout.turn_outcome(decision.turn)}: field turn is {found.turn}"
                )
        return found

    def ended(self) -> tuple[Ended | None, Ended | None]:
        """Return `COMMIT_SUCCESS` and `COMMIT_FAIL`, each None where it does not stand."""
        success = find(self.store, Ended, self.key("COMMIT_SUCCESS"))
        failure = find(self.store, Ended, self.key("COMMIT_FAIL"))
        for mark, name, ended in (
            (success, "COMMIT_SUCCESS", "committed"),
            (failure, "COMMIT_FAIL", "failed"),
        ):
            if mark is not None:
                self._own(mark, self.key(name))
                if mark.ended != ended:
                    raise MalformedRecordError(f"{self.key(name)}: field ended is {mark.ended!r}")
        return success, failure

    def phase(self) -> JobPhase:
        """Read the job's phase off its markers."""
        decision = self.decision()
        if decision is None:
            # Most jobs that are looked at are open: one request instead of three.
            return JobPhase.OPEN
        return phase_of(decision, self.outcome(decision), *self.ended())

    def expected(self, job_attempt: JobAttemptId) -> ExpectedTasks | None:
        """Return the frozen task list of a job attempt, None if it has none."""
        key = self.key(f"attempts/{check_id('job attempt', job_attempt)}.json")
        found = find(self.store, ExpectedTasks, key)
        if found is not None:
            self._own(found, key)
        return found

    def attempts(self) -> Iterator[ExpectedTasks]:
        """Yield the frozen task lists of all job attempts."""
        for page in self.store.pages(self.key("attempts/")):
            for info in page:
                found = find(self.store, ExpectedTasks, info.key) if info.key.endswith(".json") else None
                if found is not None:
                    yield found

    def pending_set_key(self, task: TaskId, attempt: AttemptId) -> str:
        """Key of the pending set of one attempt."""
        return self.key(f"tasks/{check_id('task', task)}/{check_id('attempt', attempt)}.pendingset")

    def pending_sets(self, task: TaskId | None = None) -> Iterator[tuple[PendingSet, str]]:
        """Yield all pending sets, or those of one task, each with its digest, one in memory at a time.

        Raises:
            MalformedRecordError: One is not readable, or says it is another's.
        """
        prefix = self.key("tasks/") if task is None else self.key(f"tasks/{check_id('task', task)}/")
        for page in self.store.pages(prefix):
            for info in page:
                if info.key.endswith(".pendingset"):
                    yield self._pending_set(info.key)

    def aborted_attempts(self, task: TaskId | None = None) -> set[tuple[TaskId, AttemptId]]:
        """Return the attempts that were ruled out by their ids, of all tasks or of one."""
        prefix = self.key("tasks/") if task is None else self.key(f"tasks/{check_id('task', task)}/")
        aborted = set()
        for page in self.store.pages(prefix):
            for info in page:
                if info.key.endswith(".aborted"):
                    _, of_task, name = info.key.rsplit("/", 2)
                    aborted.add((TaskId(of_task), AttemptId(name.removesuffix(".aborted"))))
        return aborted

    def _pending_set(self, key: str) -> tuple[PendingSet, str]:
        data = self.store.get(key, length=MAX_RECORD_BYTES + 1)
        found = decode(PendingSet, data, key)
        self._own(found, key)
        if self.pending_set_key(found.task_id, found.attempt_id) != key:
            raise MalformedRecordError(
                f"{key}: fields task_id and attempt_id say {found.task_id}/{found.attempt_id}"
            )
        return found, digest(data)

    def audit(self, chosen_digest: str) -> AuditVerdict | None:
        """Return the verdict over the chosen pending sets, None if there is none."""
        key = self.audit_key(chosen_digest)
        found = find(self.store, AuditVerdict, key)
        if found is not None:
            self._own(found, key)
            if found.chosen_digest != chosen_digest:
                raise MalformedRecordError(f"{key}: field chosen_digest is of other data")
        return found

    def audit_key(self, chosen_digest: str) -> str:
        """Key of the verdict over these pending sets."""
        return self.key(f"audits/{check_id('digest', chosen_digest)}.json")

    def has_lease(self) -> bool:
        """Tell whether `lease.json` is there: an ended job that has it is not cleaned up."""
        try:
            self.store.head(self.key("lease.json"))
        except ObjectNotFoundError:
            return False
        return True

    def report(self) -> Report | None:
        """Return `report.json`, None before the job's end."""
        return find(self.store, Report, self.key("report.json"))

    def _own(self, record: Record, where: str) -> None:
        owner = getattr(record, "job_id", self.job_id)
        if owner != self.job_id:
            raise MalformedRecordError(f"{where}: field job_id is {owner}, not {self.job_id}")


def job_ids(store: Store, prefix: str = layout.JOBS) -> Iterator[JobId]:
    """Yield the ids of a destination's jobs, in the store's order; one listing a thousand records."""
    after = ""
    while page := next(iter(store.pages(prefix, after=after)), ()):
        found = dict.fromkeys(info.key.removeprefix(layout.JOBS).partition("/")[0] for info in page)
        yield from (JobId(job) for job in found if is_job_id(job))
        # "0" follows "/": the next page starts behind the rest of the last job's folder.
        after = f"{layout.JOBS}{list(found)[-1]}0"
