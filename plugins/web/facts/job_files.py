"""The attempts, files and plan of a job, in pages: each reads the records that its cursor names.

The files come from the pending sets, from the decision on from the plan, and after the end from the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from lockgate.plugins.web.facts.job_detail import folder_of, place_of
from lockgate.plugins.web.facts.turns import removed_rows
from lockgate.plugins.web.models.jobs import Attempt, JobFile, JobPlan
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import DEFAULT_LIMIT, cursor, key_after
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.decide.task_selection import eligible, last_commit
from lockgate.storage_core.commit.publish.commit_context import read_result_shard
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.job_folder import JobFolder, SavedSet
from lockgate.storage_core.commit.records.job_record import LeaseRecord
from lockgate.storage_core.commit.records.log_records import LiveFile, LiveShard
from lockgate.storage_core.commit.records.pending_set import FileTotals, PendingFile, PendingSet
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import FileResult, Report
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, read_shard
from lockgate.storage_core.commit.records.task import ExpectedTasks
from lockgate.storage_core.commit.registry.rows import Job, TaskAttempt
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    JournalUnavailableError,
    MalformedRecordError,
    ObjectNotFoundError,
    StateLostError,
)
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId
from lockgate.storage_core.journal import Reading
from lockgate.storage_core.stores import ObjectInfo

SETS_AT_ONCE: Final = 8
"""Pending sets that one page reads at the same time."""

TOTALLED_BYTES: Final = 8 * 1024 * 1024
"""How much of pending sets one page of attempts reads, for their totals."""

GONE_ON: Final = "The job has gone on since the previous page was read: begin with the first page."


class Place(NamedTuple):
    """Where a page of files begins.

    Attributes:
        source: `pending`, `plan` or `report`.
        name: Digest of the plan, or key of the pending set.
        shard: Number of the shard in the plan or the report.
        past: Number of files of this shard that earlier pages have; in a pending set, the offset in the
            record at which the next file begins.
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
    """Return a page of a job's files, each with its state or its result."""
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
        removed_rows=removed_rows(plan.head.removals),
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
        results = read_result_shard(folder, report, shard)
        first = begin.past if shard == begin.shard else 0
        for index in range(first, len(results)):
            result = results[index]
            live = sizes.of(result, shard * SHARD_ENTRIES + index)
            yield (
                Place("report", "", shard, index + 1),
                JobFile(
                    key=result.key,
                    state=result.result,
                    size_bytes=None if live is None else live.size,
                    rows=None if live is None else live.rows,
                    detail=result.detail,
                ),
            )


class _Sizes:
    """Sizes of published files, from the shard of the destination's log that lists them.

    A report lists the files that the job removed, then those that it published, in the order of the log.
    """

    def __init__(self, folder: JobFolder, report: Report) -> None:
        self._folder = folder
        self._before = sum(report.counts.get(result, 0) for result in ("removed", "kept", "retained"))
        outcome = folder.outcome(folder.decision()) if report.receipt is not None else None
        self._refs = () if outcome is None else outcome.added
        self._shard, self._files = -1, dict[str, LiveFile]()

    def of(self, result: FileResult, number: int) -> LiveFile | None:
        shard = (number - self._before) // SHARD_ENTRIES
        if result.result != "published" or not 0 <= shard < len(self._refs):
            return None
        if shard != self._shard:
            found = read_shard(self._folder.store, LiveShard, layout.log_shard, self._refs[shard].digest)
            self._shard, self._files = shard, {file.key: file for file in found.files}
        return self._files.get(result.key)


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
    keys += (info.key for info in islice(_listed_sets(folder, prefix + place.name, limit), limit))
    reads = [(key, place.past if number == 0 else 0) for number, key in enumerate(keys)]
    for key, found in _read_sets(folder, limit, reads):
        start = 0
        if isinstance(found, str):
            unknown += [found] if found else []
        else:
            shown = found[: limit - len(items)]
            items += (_pending_file(key, file) for file, _ in shown)
            start = shown[-1][1] if shown else 0
        place = Place("pending", key.removeprefix(prefix), 0, start)
        if start or len(items) == limit:  # a page ends early if its files are very long
            break
    is_last = not place.past and next(_listed_sets(folder, prefix + place.name, 1), None) is None
    next_after = None if is_last else cursor("files", place)
    return Page(items=tuple(items), next_after=next_after, unknown=tuple(unknown))


def _listed_sets(folder: JobFolder, after: str, limit: int) -> Iterator[ObjectInfo]:
    pages = folder.store.pages(folder.key("tasks/"), after=after, page_size=limit)
    return (info for page in pages for info in page if info.key.endswith(".pendingset"))


def _read_sets(
    folder: JobFolder, limit: int, places: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, list[tuple[PendingFile, int]] | str]]:
    """Yield files of pending sets, the others' at the same time if the first set does not fill the page."""
    read = partial(_read_set, folder, limit)
    yield from map(read, places[:1])
    yield from in_order(read, places[1:], SETS_AT_ONCE)


def _read_set(
    folder: JobFolder, limit: int, place: tuple[str, int]
) -> tuple[str, list[tuple[PendingFile, int]] | str]:
    """Return files of a pending set; why it cannot be read, or nothing if it is gone."""
    key, start = place
    try:
        return key, folder.pending_files(key, start, limit)
    except ObjectNotFoundError:
        return key, ""
    except MalformedRecordError as error:
        return key, str(error)


def _pending_file(key: str, file: PendingFile) -> JobFile:
    task, attempt = _attempt_of(key)
    detail = f"task {task}, attempt {attempt}"
    return JobFile(key=file.key, state="pending", size_bytes=file.upload.size, rows=file.rows, detail=detail)


def _attempt_of(key: str) -> tuple[str, str]:
    """Return the task and the attempt in the key of a pending set."""
    _, task, name = key.rsplit("/", 2)
    return task, name.removesuffix(".pendingset")


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
    if found is None:
        if not reads.has_journal:
            return Page(items=())
        return reads.journal(lambda reading: _registered(reading, place, job_id, begin, limit))
    if reads.has_journal and any(one.files is None for one in found.items):
        with suppress(JournalUnavailableError, StateLostError):
            page = found
            found = reads.journal(lambda reading: _with_totals(reading, place, job_id, page))
    without = sum(one.files is None for one in found.items)
    if not without:
        return found
    why = (
        f"The totals of {without} attempts: their records are too long for a page, and the registry has none."
    )
    return found.model_copy(update={"unknown": (*found.unknown, why)})


class _Commit(NamedTuple):
    """What decides which attempts count."""

    job_attempt: JobAttemptId | None
    expected: ExpectedTasks | None
    decision: Decision | None


def _attempts(folder: JobFolder, begin: tuple[str, str] | None, limit: int) -> Page[Attempt] | None:
    """Return a page of the attempts in the store; None if they were cleaned up.

    Records are read completely, for their totals, up to `TOTALLED_BYTES`; of the others, only the head is.
    """
    prefix = folder.key("tasks/")
    after = "" if begin is None else f"{prefix}{'/'.join(begin)}.pendingset"
    listed = list(islice(_listed_sets(folder, after, limit + 1), limit + 1))
    decision = folder.decision()
    if not listed and decision is not None:
        return None
    job_attempt = _job_attempt(folder, decision)
    expected = None if job_attempt is None else folder.expected(job_attempt)
    items, unknown, left = list[Attempt](), list[str](), TOTALLED_BYTES
    shown = dict[str, bool]()
    for info in listed[:limit]:
        shown[info.key] = info.size <= left
        left -= info.size if info.size <= left else 0
    tasks = dict.fromkeys(TaskId(_attempt_of(info.key)[0]) for info in listed[:limit])
    read = partial(_of_task, folder, _Commit(job_attempt, expected, decision), shown)
    for found in in_order(read, tasks, SETS_AT_ONCE):
        if isinstance(found, str):
            unknown.append(found)
        else:
            items += found
    next_after = cursor("attempts", _attempt_of(listed[limit - 1].key)) if len(listed) > limit else None
    return Page(items=tuple(items), next_after=next_after, unknown=tuple(unknown))


def _of_task(
    folder: JobFolder, commit: _Commit, shown: Mapping[str, bool], task: TaskId
) -> list[Attempt] | str:
    """Return those of the committed attempts of one task that the page shows, or why they cannot be read.

    Args:
        folder: Folder of the job.
        commit: What decides which attempts count.
        shown: Keys of the pending sets that the page shows, each with whether to read its totals.
        task: The task.
    """
    try:
        # The digest is not compared, so the records are not read for it.
        sets = {
            info.key: SavedSet(folder.pending_head(info.key), "", info.modified_s)
            for info in folder.listed_sets(task)
        }
        aborted = folder.aborted_attempts(task)
        totals = {key: folder.pending_totals(key) for key in sets if shown.get(key)}
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return f"task {task}: {error}"
    job_attempt, expected, decision = commit
    counting: set[AttemptId] | None = None
    if decision is not None and decision.verdict != "commit":
        counting = set()
    elif job_attempt is not None:
        able = eligible(sets.values(), job_attempt, expected, aborted)
        counting = _counting(list(able), expected, decision)
    return [_attempt(saved.record, counting, totals.get(key)) for key, saved in sets.items() if key in shown]


def _attempt(head: PendingSet, counting: set[AttemptId] | None, totals: FileTotals | None) -> Attempt:
    return Attempt(
        task_id=head.task_id,
        attempt_id=head.attempt_id,
        job_attempt=head.job_attempt,
        committed_s=head.created_s,
        files=None if totals is None else totals.files,
        rows=None if totals is None else totals.rows,
        size_bytes=None if totals is None else totals.size,
        counts=None if counting is None else head.attempt_id in counting,
    )


def _with_totals(reading: Reading, place: str, job_id: str, page: Page[Attempt]) -> Page[Attempt]:
    """Return a page with the registry's totals of the attempts whose records were not read."""
    keys = [(place, job_id, one.task_id, one.attempt_id) for one in page.items if one.files is None]
    known = {(row.task_id, row.attempt_id): row for row in reading.find(TaskAttempt, keys)}

    def totalled(one: Attempt) -> Attempt:
        row = known.get((one.task_id, one.attempt_id)) if one.files is None else None
        if row is None:
            return one
        return one.model_copy(update={"files": row.files, "rows": row.rows, "size_bytes": row.size_bytes})

    return page.model_copy(update={"items": tuple(map(totalled, page.items))})


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
    is_last = len(found) <= limit
    counts = _all_count(reading.get(Job, place, job_id), found if begin is None and is_last else ())
    items = tuple(
        Attempt(
            task_id=row.task_id,
            attempt_id=row.attempt_id,
            job_attempt=row.job_attempt,
            committed_s=row.committed_s,
            files=row.files,
            rows=row.rows,
            size_bytes=row.size_bytes,
            counts=counts,
        )
        for row in found[:limit]
    )
    next_after = None if is_last else cursor("attempts", (items[-1].task_id, items[-1].attempt_id))
    return Page(items=items, next_after=next_after)


def _all_count(job: Job | None, attempts: Sequence[TaskAttempt]) -> bool | None:
    """Return whether an ended job publishes all of its attempts or none; None if it cannot be told.

    Args:
        job: The job in the registry.
        attempts: All of its attempts; empty if a page has not all of them.
    """
    if job is None or job.phase != "committed":
        return None if job is None or job.phase != "failed" else False
    are_all = len({one.task_id for one in attempts}) == len(attempts) == job.tasks
    return True if are_all and sum(one.files for one in attempts) == job.files else None
