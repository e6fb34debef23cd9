"""Select the attempt of each task that the commit includes.

Source: commit protocol, "Writing and task commit" (job attempts, speculation) and step 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lockgate.storage_core.commit.records.expected_tasks import ExpectedTasks
from lockgate.storage_core.commit.records.job_folder import JobFolder, SavedSet, aborted_attempt
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import ObjectInfo

SETS_AT_ONCE: Final = 4
KEPT_BYTES: Final = 1024 * 1024
"""Bytes of pending sets that a commit reads at a time if they are small, and keeps for its plan."""


def sets_at_once(settings: Settings, listed: Sequence[ObjectInfo] = ()) -> int:
    """Return how many pending sets a commit reads and keeps at a time.

    Args:
        settings: Settings.
        listed: Pending sets in a listing; more of small ones are read at a time.
    """
    largest = max((info.size for info in listed), default=KEPT_BYTES)
    return min(max(SETS_AT_ONCE, KEPT_BYTES // max(1, largest)), settings.near_calls)


@dataclass(frozen=True)
class Chosen:
    """The selected attempt of a task, and the digest of its pending set.

    Attributes:
        record: The pending set itself, if it is kept in memory.
    """

    task_id: TaskId
    attempt_id: AttemptId
    digest: str
    record: PendingSet | None = field(default=None, compare=False, repr=False)


class ListedTasks(NamedTuple):
    """Records of the tasks of a job, from one listing."""

    sets: list[ObjectInfo]
    aborted: set[tuple[TaskId, AttemptId]]


class Selection(NamedTuple):
    """The attempts that a commit includes.

    Attributes:
        chosen: One attempt of each task, sorted by task id.
        is_begun: Whether a task has committed, or there is a task list.
    """

    chosen: list[Chosen]
    is_begun: bool


def list_tasks(folder: JobFolder) -> ListedTasks:
    """List the pending sets of a job, and the attempts that never count."""
    found = ListedTasks([], set())
    for info in folder.task_records():
        if info.key.endswith(".pendingset"):
            found.sets.append(info)
        elif (aborted := aborted_attempt(info)) is not None:
            found.aborted.add(aborted)
    return found


class _Place(NamedTuple):
    """Place of a task commit among those of its task; the greatest counts."""

    stamp: Stamp
    created_s: float  # by the store's clock: the order of commits at the same moment
    attempt_id: AttemptId


def choose(folder: JobFolder, job_attempt: JobAttemptId) -> list[Chosen]:
    """Choose one attempt of each task of a job attempt, of which the driver has chosen none; see `select`."""
    return select(folder, job_attempt, folder.expected(job_attempt), list_tasks(folder)).chosen


def select(
    folder: JobFolder,
    job_attempt: JobAttemptId,
    expected: ExpectedTasks | None,
    listed: ListedTasks,
    *,
    winners: Mapping[TaskId, AttemptId] | None = None,
    at_once: int = 1,
    keep_bytes: int = 0,
) -> Selection:
    """Choose one attempt of each task of a job attempt, sorted by task id.

    A task commit of another job attempt counts only if its input digest equals the one in the expected list.

    Args:
        folder: Folder of the job.
        job_attempt: Job attempt whose tasks to commit.
        expected: Its task list, if it has one.
        listed: Records of the tasks.
        winners: Attempts that the driver has chosen (Spark); by default, of each task, the attempt that
            committed last, of those with the greatest try number.
        at_once: Pending sets that are read and kept at a time.
        keep_bytes: The first chosen pending sets are kept in memory, as far as they are no longer than this.

    Raises:
        MalformedRecordError: A pending set cannot be read.
        ConflictError: A task of the expected list or of `winners` has no pending set; or a pending set has an
            input digest, and neither the list nor `winners` is given.
    """
    is_begun = expected is not None
    room = keep_bytes

    def committed() -> Iterator[SavedSet]:
        nonlocal is_begun
        for saved in folder.read_sets(listed.sets, at_once=at_once):
            is_begun = is_begun or saved.record.job_attempt == job_attempt or bool(saved.record.input_digest)
            yield saved

    chosen: dict[TaskId, Chosen] = {}
    places: dict[TaskId, _Place] = {}
    for found, digest, created_s, size in eligible(committed(), job_attempt, expected, listed.aborted):
        task, attempt = found.task_id, found.attempt_id
        if winners is not None and winners.get(task) != attempt:
            continue
        if winners is None and expected is None and found.input_digest:
            # An attempt that Spark gave up may have committed only a part of its task's rows.
            raise ConflictError(
                f"job {folder.job_id} at {folder.store.url}: its driver ended before it chose which attempts "
                f"of its tasks count, such as {task}; nothing was published; run the write again"
            )
        place = _Place(found.stamp, created_s, attempt)
        if task not in places or place > places[task]:
            room -= size
            places[task], chosen[task] = place, Chosen(task, attempt, digest, found if room > 0 else None)
    _refuse_missing(folder, expected, winners, chosen)
    return Selection([chosen[task] for task in sorted(chosen)], is_begun)


def eligible(
    sets: Iterable[SavedSet],
    job_attempt: JobAttemptId,
    expected: ExpectedTasks | None,
    aborted: Container[tuple[TaskId, AttemptId]],
) -> Iterator[SavedSet]:
    """Yield the task commits that may count for a job attempt: of each task, the last one of these does.

    Args:
        sets: Pending sets of the job, of any job attempt.
        job_attempt: Job attempt whose tasks to commit.
        expected: Its task list, if it has one.
        aborted: Attempts that never count.
    """
    digests = {task.task_id: task.input_digest for task in expected.tasks} if expected else {}
    for saved in sets:
        found, task = saved.record, saved.record.task_id
        same_input = bool(found.input_digest) and digests.get(task) == found.input_digest
        if found.job_attempt != job_attempt and not same_input:
            continue
        if found.input_digest and digests.get(task) and not same_input:
            continue  # written from other input than the list requires
        if (task, found.attempt_id) in aborted or (expected is not None and task not in digests):
            continue
        yield saved


def last_commit(sets: Iterable[SavedSet]) -> AttemptId:
    """Return the attempt that counts, of eligible ones of one task, unless the driver chooses another."""
    places = (_Place(found.stamp, created_s, found.attempt_id) for found, _, created_s, _ in sets)
    return max(places).attempt_id


def newest_job_attempt(folder: JobFolder) -> JobAttemptId | None:
    """Return the job attempt to commit if neither the caller nor a lease names one.

    It is the one with the newest task list, else with the newest pending set by the store's clock; None if
    there is neither.
    """
    listed = max(folder.attempts(), key=lambda tasks: tasks.stamp, default=None)
    if listed is not None:
        return listed.job_attempt
    # Stamps of different tasks say nothing about their order.
    found = ((one.created_s, one.record.stamp, one.record.job_attempt) for one in folder.pending_sets())
    newest = max(found, default=None)
    return None if newest is None else newest[-1]


def chosen_digest(chosen: list[Chosen]) -> str:
    """Return the digest of the chosen attempts, to which an audit verdict applies."""
    lines = "".join(f"{task.task_id}\n{task.attempt_id}\n{task.digest}\n" for task in chosen)
    return hashlib.sha256(lines.encode()).hexdigest()


def _refuse_missing(
    folder: JobFolder,
    expected: ExpectedTasks | None,
    winners: Mapping[TaskId, AttemptId] | None,
    chosen: Mapping[TaskId, Chosen],
) -> None:
    wanted = {task.task_id for task in expected.tasks} if expected is not None else set(winners or ())
    missing = sorted(wanted - set(chosen))
    if missing:
        raise ConflictError(
            f"job {folder.job_id} at {folder.store.url}: {len(missing)} of {len(wanted)} tasks have not "
            f"committed ({', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}); nothing was published"
        )
