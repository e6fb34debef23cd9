"""The attempts, files and plan of a job, in pages: each reads the records that its cursor names.

The files come from the pending sets, from the decision on from the plan, and after the end from the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from lockgate.plugins.web.facts.job_detail import folder_of, place_of
from lockgate.plugins.web.models.base import Page
from lockgate.plugins.web.models.jobs import Attempt, JobFile, JobPlan
from lockgate.plugins.web.paging import DEFAULT_LIMIT, cursor, key_after
from lockgate.plugins.web.reads import Reads
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.decide.task_selection import eligible, last_commit
from lockgate.storage_core.commit.publish.file_report import read_fates
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.destination_log.live_files import LiveFile, LiveShard
from lockgate.storage_core.commit.records.job import LeaseRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder, SavedSet, find
from lockgate.storage_core.commit.records.pending_set import PendingFile, PendingSet, PendingSetPage
from lockgate.storage_core.commit.records.plan import Decision
from lockgate.storage_core.commit.records.report import FileFate, Report
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, read_shard, total_rows
from lockgate.storage_core.commit.records.task import ExpectedTasks
from lockgate.storage_core.commit.registry.rows import TaskAttempt
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId
from lockgate.storage_core.journal import Reading

SETS_AT_ONCE: Final = 8
"""Pending sets that one page reads at the same time."""

GONE_ON: Final = "The job has gone on since the previous page was read: begin with the first page."


class Place(NamedTuple):
    """Where a page of files begins.

    Attributes:
        source: `pending`, `plan` or `report`.
        name: Digest of the plan, or key of the pending set.
        shard: Number of the shard in the plan or the report.
        past: Number of files of this shard or set that earlier pages have.
    """

    source: str
    name: str = ""
    shard: int = 0
    past: int = 0


def job_files(
    reads: Reads,
    job_id: str,
    destination: str | None = None,
    after: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Page[JobFile]:
    """Return a page of a job's files, each with its state or its fate."""
    place = place_of(reads, job_id, destination)
    key = key_after("files", after, str, str, int, int)
    begin = None if key is None else Place(str(key[0]), str(key[1]), int(key[2] or 0), int(key[3] or 0))
    return reads.store(place, lambda: _files(folder_of(reads, job_id, place), begin, limit))


def job_plan(reads: Reads, job_id: str, destination: str | None = None) -> JobPlan:
    """Return the plan of a decided job, without its files.

    Raises:
        ObjectNotFoundError: The job has no plan: it is undecided, or cleaned up.
    """
    place = place_of(reads, job_id, destination)

    def read() -> Plan:
        folder = folder_of(reads, job_id, place)
        decision = folder.decision()
        if decision is None or decision.plan is None:
            raise ObjectNotFoundError(
                f"job {job_id} at {place} has no plan: its commit is not decided; nothing was read"
            )
        return read_plan(folder, decision.plan)

    plan = reads.store(place, read)
    return JobPlan(
        digest=plan.name,
        turn=plan.head.turn,
        mode=plan.head.mode,
        added_files=plan.files,
        added_rows=plan.rows,
        added_bytes=plan.size,
        removed_files=sum(ref.files for ref in plan.head.removals),
        removed_bytes=sum(ref.size for ref in plan.head.removals),
    )


def _files(folder: JobFolder, begin: Place | None, limit: int) -> Page[JobFile]:
    report = folder.report()
    if report is not None:
        found = _of_report(folder, report, begin or Place("report"))
        return _page(found, limit, begin, Place("report"))
    decision = folder.decision()
    if decision is not None and decision.plan is not None:
        try:
            plan = read_plan(folder, decision.plan)
        except ObjectNotFoundError:
            return Page(items=(), unknown=(GONE_ON,))
        found = _of_plan(folder, plan, decision, begin or Place("plan", plan.name))
        return _page(found, limit, begin, Place("plan", plan.name))
    return _pending(folder, begin, limit)


def _page(
    found: Iterator[tuple[Place, JobFile]], limit: int, begin: Place | None, expected: Place
) -> Page[JobFile]:
    """Return the next files; each comes with the place after it."""
    if begin is not None and begin[:2] != expected[:2]:
        return Page(items=(), unknown=(GONE_ON,))
    taken = list(islice(found, limit))
    is_last = len(taken) < limit or next(found, None) is None
    return Page(
        items=tuple(file for _, file in taken), next_after=None if is_last else cursor("files", taken[-1][0])
    )


def _of_report(folder: JobFolder, report: Report, begin: Place) -> Iterator[tuple[Place, JobFile]]:
    sizes = _Sizes(folder, report)
    for shard in range(begin.shard, len(report.shards) + 1):
        fates = read_fates(folder, report, shard)
        first = begin.past if shard == begin.shard else 0
        for index in range(first, len(fates)):
            fate = fates[index]
            live = sizes.of(fate, shard * SHARD_ENTRIES + index)
            yield (
                Place("report", "", shard, index + 1),
                JobFile(
                    key=fate.key,
                    state=fate.fate,
                    size_bytes=None if live is None else live.size,
                    rows=None if live is None else live.rows,
                    detail=fate.detail,
                ),
            )


class _Sizes:
    """Sizes of published files, from the shard of the destination's log that lists them.

    A report lists the files that the job removed, then those that it published, in the order of the log.
    """

    def __init__(self, folder: JobFolder, report: Report) -> None:
        self._folder = folder
        self._before = sum(report.counts.get(fate, 0) for fate in ("removed", "kept", "retained"))
        outcome = folder.outcome(folder.decision()) if report.receipt is not None else None
        self._refs = () if outcome is None else outcome.added
        self._shard, self._files = -1, dict[str, LiveFile]()

    def of(self, fate: FileFate, number: int) -> LiveFile | None:
        shard = (number - self._before) // SHARD_ENTRIES
        if fate.fate != "published" or not 0 <= shard < len(self._refs):
            return None
        if shard != self._shard:
            found = read_shard(self._folder.store, LiveShard, layout.log_shard, self._refs[shard].digest)
            self._shard, self._files = shard, {file.key: file for file in found.files}
        return self._files.get(fate.key)


def _of_plan(
    folder: JobFolder, plan: Plan, decision: Decision, begin: Place
) -> Iterator[tuple[Place, JobFile]]:
    outcome = folder.outcome(decision)
    state = "published" if outcome is not None and outcome.verdict == "published" else "planned"
    added = len(plan.head.additions)
    for shard in range(begin.shard, added + len(plan.head.removals)):
        files: Iterable[JobFile]
        if shard < added:
            files = (
                JobFile(key=file.key, state=state, size_bytes=file.upload.size, rows=file.rows)
                for file in plan.additions(shard)
            )
        else:
            files = (
                JobFile(
                    key=file.key,
                    state="planned",
                    size_bytes=file.size,
                    rows=None,
                    detail="it is removed after the publication",
                )
                for file in plan.removals(shard - added)
            )
        first = begin.past if shard == begin.shard else 0
        for index, file in islice(enumerate(files), first, None):
            yield Place("plan", plan.name, shard, index + 1), file


def _pending(folder: JobFolder, begin: Place | None, limit: int) -> Page[JobFile]:
    """Return a page of pending files. It reads at most as many pending sets as it may have files."""
    if begin is not None and begin.source != "pending":
        return Page(items=(), unknown=(GONE_ON,))
    items, unknown = list[JobFile](), list[str]()
    prefix = folder.key("tasks/")
    place = begin or Place("pending")
    keys = [prefix + place.name] if place.past else []
    keys += islice(_set_keys(folder, prefix + place.name, limit), limit)
    reads = [(key, place.past if number == 0 else 0) for number, key in enumerate(keys)]
    for key, first, found in in_order(partial(_read_set, folder, limit), reads, SETS_AT_ONCE):
        past = 0
        if isinstance(found, str):
            unknown += [found] if found else []
        else:
            head, files = found
            files = files[: limit - len(items)]
            items += (_pending_file(head, file) for file in files)
            past = first + len(files) if first + len(files) < len(head.files) else 0
        place = Place("pending", key.removeprefix(prefix), 0, past)
        if len(items) == limit:
            break
    is_last = not place.past and next(_set_keys(folder, prefix + place.name, 1), None) is None
    next_after = None if is_last else cursor("files", place)
    return Page(items=tuple(items), next_after=next_after, unknown=tuple(unknown))


def _set_keys(folder: JobFolder, after: str, limit: int) -> Iterator[str]:
    pages = folder.store.pages(folder.key("tasks/"), after=after, page_size=limit)
    return (info.key for page in pages for info in page if info.key.endswith(".pendingset"))


def _read_set(
    folder: JobFolder, limit: int, place: tuple[str, int]
) -> tuple[str, int, tuple[PendingSetPage, list[PendingFile]] | str]:
    """Return files of a pending set; why it cannot be read, or nothing if it is gone."""
    key, first = place
    try:
        return key, first, folder.pending_files(key, first, limit)
    except ObjectNotFoundError:
        return key, first, ""
    except MalformedRecordError as error:
        return key, first, str(error)


def _pending_file(found: PendingSetPage, file: PendingFile) -> JobFile:
    return JobFile(
        key=file.key,
        state="pending",
        size_bytes=file.upload.size,
        rows=file.rows,
        detail=f"task {found.task_id}, attempt {found.attempt_id}",
    )


def job_attempts(
    reads: Reads,
    job_id: str,
    destination: str | None = None,
    after: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Page[Attempt]:
    """Return a page of a job's committed task attempts: from the store, or, after the end, the registry."""
    place = place_of(reads, job_id, destination)
    key = key_after("attempts", after, str, str)
    begin = None if key is None else (str(key[0]), str(key[1]))
    found = reads.store(place, lambda: _attempts(folder_of(reads, job_id, place), begin, limit))
    if found is not None or not reads.has_journal:
        return found or Page(items=())
    return reads.journal(lambda reading: _registered(reading, place, job_id, begin, limit))


def _attempts(folder: JobFolder, begin: tuple[str, str] | None, limit: int) -> Page[Attempt] | None:
    """Return a page of the attempts in the store; None if they were cleaned up."""
    prefix = folder.key("tasks/")
    after = "" if begin is None else f"{prefix}{'/'.join(begin)}.pendingset"
    keys = list(islice(_set_keys(folder, after, limit + 1), limit + 1))
    decision = folder.decision()
    if not keys and decision is not None:
        return None
    job_attempt = _job_attempt(folder, decision)
    expected = None if job_attempt is None else folder.expected(job_attempt)
    items, unknown = list[Attempt](), list[str]()
    tasks = dict.fromkeys(TaskId(key.split("/")[-2]) for key in keys[:limit])
    read = partial(_of_task, folder, job_attempt, expected, decision)
    for found in in_order(read, tasks, SETS_AT_ONCE):
        if isinstance(found, str):
            unknown.append(found)
        else:
            items += found
    shown = set(keys[:limit])
    items = [
        one
        for one in items
        if folder.pending_set_key(TaskId(one.task_id), AttemptId(one.attempt_id)) in shown
    ]
    last = keys[limit - 1].removesuffix(".pendingset").split("/")[-2:] if len(keys) > limit else None
    next_after = None if last is None else cursor("attempts", tuple(last))
    return Page(items=tuple(items), next_after=next_after, unknown=tuple(unknown))


def _of_task(
    folder: JobFolder,
    job_attempt: JobAttemptId | None,
    expected: ExpectedTasks | None,
    decision: Decision | None,
    task: TaskId,
) -> list[Attempt] | str:
    """Return the committed attempts of one task, or why they cannot be read."""
    try:
        sets = list(folder.pending_sets(task))
        aborted = folder.aborted_attempts(task)
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return f"task {task}: {error}"
    counting: set[AttemptId] | None = None
    if decision is not None and decision.verdict != "commit":
        counting = set()
    elif job_attempt is not None:
        counting = _counting(list(eligible(sets, job_attempt, expected, aborted)), expected, decision)
    return [_attempt(saved.record, counting) for saved in sets]


def _attempt(found: PendingSet, counting: set[AttemptId] | None) -> Attempt:
    return Attempt(
        task_id=found.task_id,
        attempt_id=found.attempt_id,
        job_attempt=found.job_attempt,
        committed_s=found.created_s,
        files=len(found.files),
        rows=total_rows(file.rows for file in found.files),
        size_bytes=sum(file.upload.size for file in found.files),
        counts=None if counting is None else found.attempt_id in counting,
    )


def _job_attempt(folder: JobFolder, decision: Decision | None) -> JobAttemptId | None:
    """Return the job attempt that is committed, or would be now; None if it is not known here."""
    if decision is not None:
        try:
            return None if decision.plan is None else read_plan(folder, decision.plan).head.job_attempt
        except ObjectNotFoundError:
            return None
    lease = find(folder.store, LeaseRecord, folder.key("lease.json"))
    return None if lease is None else lease.job_attempt


def _counting(
    sets: list[SavedSet], expected: ExpectedTasks | None, decision: Decision | None
) -> set[AttemptId] | None:
    """Return the attempt that counts, of eligible ones of one task; None if it is not known.

    One of several may have committed after the decision, and Spark's driver chooses among them itself.
    """
    is_spark = expected is None and any(saved.record.input_digest for saved in sets)
    if len(sets) > 1 and (decision is not None or is_spark):
        return None
    return {last_commit(sets)} if sets else set()


def _registered(
    reading: Reading, place: str, job_id: str, begin: tuple[str, str] | None, limit: int
) -> Page[Attempt]:
    after = None if begin is None else (place, job_id, *begin)
    found = reading.where(TaskAttempt, {"destination": place, "job_id": job_id}, after=after, limit=limit + 1)
    items = tuple(
        Attempt(
            task_id=row.task_id,
            attempt_id=row.attempt_id,
            job_attempt=row.job_attempt,
            committed_s=row.committed_s,
            files=row.files,
            rows=row.rows,
            size_bytes=row.size_bytes,
            counts=None,
        )
        for row in found[:limit]
    )
    is_last = len(found) <= limit
    next_after = None if is_last else cursor("attempts", (items[-1].task_id, items[-1].attempt_id))
    return Page(items=items, next_after=next_after)
