"""The attempts, files and plan of a job, in pages: each reads the records that its cursor names.

The files come from the pending sets, from the decision on from the plan, and after the end from the report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Final, NamedTuple

from fastapi import APIRouter

from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Model, Page, cursor, key_after, page_of
from lockgate.plugins.web.api.job import DestinationOfJob, folder_of, place_of
from lockgate.plugins.web.api.turns import total
from lockgate.plugins.web.request_reads import ReadsOfRequest
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.decide.task_selection import eligible, last_commit
from lockgate.storage_core.commit.publish.commit_context import read_result_shard
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTasks
from lockgate.storage_core.commit.records.job_folder import JobFolder, SavedSet
from lockgate.storage_core.commit.records.job_record import LeaseRecord
from lockgate.storage_core.commit.records.log_records import LiveFile, LiveShard
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import REPLACED, FileResult, Report
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, read_shard, total_rows
from lockgate.storage_core.commit.registry.rows import Job, TaskAttempt
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId
from lockgate.storage_core.journal import Reading
from lockgate.storage_core.stores import ObjectInfo

router = APIRouter(prefix="/jobs/{job_id}", tags=["job"])

SETS_AT_ONCE: Final = 8
"""Pending sets that one page reads at the same time."""

READ_BYTES: Final = 8 * 1024 * 1024
"""How much of the pending sets of its items one page reads, unless the first set is larger: it may then have
few items. A page of attempts also reads the other attempts of its tasks."""

GONE_ON: Final = "The job has gone on since the previous page was read: begin with the first page."


class Attempt(Model):
    """A committed task attempt.

    Attributes:
        counts: Whether the job publishes this attempt and no other of the same task; None if it is unknown.
    """

    task_id: str
    attempt_id: str
    job_attempt: str
    committed_s: float
    files: int
    rows: int | None
    size_bytes: int
    counts: bool | None


class JobFile(Model):
    """A file of a job.

    Attributes:
        state: `pending`, `planned`, or a result of the report: `published`, `lost`, `reverted`, `aborted`, …
    """

    key: str
    state: str
    size_bytes: int | None
    rows: int | None
    detail: str = ""


class JobPlan(Model):
    """The frozen plan of a commit, without its files."""

    digest: str
    turn: int
    mode: str
    added_files: int
    added_rows: int | None
    added_bytes: int
    removed_files: int
    removed_rows: int | None
    removed_bytes: int


class Place(NamedTuple):
    """Where a page of files begins.

    Attributes:
        source: `pending`, `plan` or `report`.
        name: Digest of the plan, or name of the pending set.
        shard: Number of the shard in the plan or the report.
        past: Number of files of this shard or pending set that earlier pages have; 0: all of a pending set.
    """

    source: str
    name: str = ""
    shard: int = 0
    past: int = 0


@router.get("/files")
def job_files(
    reads: ReadsOfRequest,
    job_id: str,
    destination: DestinationOfJob = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobFile]:
    """Return the files of a job: pending ones, from the decision on those of the plan, then their results."""
    place = place_of(reads, job_id, destination)
    key = key_after("files", after, str, str, int, int)
    begin = None if key is None else Place(*key[:2], *(max(0, min(number, 2**31)) for number in key[2:]))
    return reads.store(place, lambda: _files(folder_of(reads, job_id, place), begin, limit))


@router.get("/plan")
def job_plan(reads: ReadsOfRequest, job_id: str, destination: DestinationOfJob = None) -> JobPlan:
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
        removed_files=total(plan.head.removals, "files"),
        removed_rows=total_rows(ref.rows for ref in plan.head.removals),
        removed_bytes=total(plan.head.removals, "size"),
    )


def _files(folder: JobFolder, begin: Place | None, limit: int) -> Page[JobFile]:
    report = folder.report()
    decision = folder.decision() if report is None else None
    if report is not None:
        expected = Place("report")
        found = _of_report(folder, report, begin or expected)
    elif decision is not None and decision.plan is not None:
        expected = Place("plan", decision.plan)
        try:
            plan = read_plan(folder, decision.plan)
        except ObjectNotFoundError:
            return Page(items=(), unknown=(GONE_ON,))
        found = _of_plan(folder, plan, decision, begin or expected)
    else:
        return _pending(folder, begin or Place("pending"), limit)
    if begin is not None and begin[:2] != expected[:2]:
        return Page(items=(), unknown=(GONE_ON,))
    # Each file comes with the place after it.
    taken = list(islice(found, limit + 1))
    return page_of("files", taken, limit, lambda each: each[0], lambda each: each[1])


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
        self._before = sum(report.counts.get(result, 0) for result in REPLACED)
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


def _pending(folder: JobFolder, begin: Place, limit: int) -> Page[JobFile]:
    """Return a page of pending files, with their places in whole pending sets."""
    if begin.source != "pending":
        return Page(items=(), unknown=(GONE_ON,))
    prefix = folder.key("tasks/")
    # A listing begins after a key: after a shorter one, to begin with the set of which files are left.
    listed = _listed_sets(folder, prefix + (begin.name[:-1] if begin.past else begin.name), limit + 1)
    sets = _affordable(listed[:limit])
    items, unknown, place = list[JobFile](), list[str](), begin
    read = in_order(partial(_read_set, folder), sets, SETS_AT_ONCE)
    for info, (files, why_not) in zip(sets, read, strict=False):
        name = info.key.removeprefix(prefix)
        past = begin.past if name == begin.name else 0
        unknown += [why_not] if why_not else []
        shown = files[past:][: limit - len(items)]
        items += (_pending_file(info.key, file) for file in shown)
        past += len(shown)
        place = Place("pending", name, 0, past if past < len(files) else 0)
        if len(items) == limit:
            break
    is_last = not listed or (prefix + place.name == listed[-1].key and not place.past)
    next_after = None if is_last else cursor("files", place)
    return Page(items=tuple(items), next_after=next_after, unknown=tuple(unknown))


def _listed_sets(folder: JobFolder, after: str, number: int) -> list[ObjectInfo]:
    pages = folder.store.pages(folder.key("tasks/"), after=after, page_size=number)
    sets = (info for page in pages for info in page if info.key.endswith(".pendingset"))
    return list(islice(sets, number))


def _affordable(listed: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """Return the first pending sets of a listing that one page reads: one, and more up to `READ_BYTES`."""
    sizes = accumulate(info.size for info in listed)
    return listed[: max(1, sum(size <= READ_BYTES for size in sizes))]


def _read_set(folder: JobFolder, info: ObjectInfo) -> tuple[tuple[PendingFile, ...], str]:
    """Return the files of a pending set, and why it cannot be read; nothing if it is gone."""
    try:
        return folder.pending_set(info.key)[0].files, ""
    except ObjectNotFoundError:
        return (), ""
    except MalformedRecordError as error:
        return (), str(error)


def _pending_file(key: str, file: PendingFile) -> JobFile:
    task, attempt = _attempt_of(key)
    detail = f"task {task}, attempt {attempt}"
    return JobFile(key=file.key, state="pending", size_bytes=file.upload.size, rows=file.rows, detail=detail)


def _attempt_of(key: str) -> tuple[str, str]:
    """Return the task and the attempt in the key of a pending set."""
    _, task, name = key.rsplit("/", 2)
    return task, name.removesuffix(".pendingset")


@router.get("/attempts")
def job_attempts(
    reads: ReadsOfRequest,
    job_id: str,
    destination: DestinationOfJob = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[Attempt]:
    """Return the committed task attempts of a job, by task; after the end, from the registry."""
    place = place_of(reads, job_id, destination)
    begin = key_after("attempts", after, str, str)
    found = reads.store(place, lambda: _attempts(folder_of(reads, job_id, place), begin, limit))
    if found is not None:
        return found
    if not reads.has_journal:
        return Page(items=())
    return reads.journal(lambda reading: _registered(reading, place, job_id, begin, limit))


class _Commit(NamedTuple):
    """What decides which attempts count."""

    job_attempt: JobAttemptId | None
    expected: ExpectedTasks | None
    decision: Decision | None


def _attempts(folder: JobFolder, begin: tuple[str, str] | None, limit: int) -> Page[Attempt] | None:
    """Return a page of the attempts in the store; None if they were cleaned up."""
    after = "" if begin is None else folder.key(f"tasks/{'/'.join(begin)}.pendingset")
    listed = _listed_sets(folder, after, limit + 1)
    decision = folder.decision()
    if not listed and decision is not None:
        return None
    job_attempt = _job_attempt(folder, decision)
    expected = None if job_attempt is None else folder.expected(job_attempt)
    shown = [_attempt_of(info.key) for info in _affordable(listed[:limit])]
    read = partial(_of_task, folder, _Commit(job_attempt, expected, decision), set(shown))
    items, unknown = list[Attempt](), list[str]()
    for found in in_order(read, dict.fromkeys(TaskId(task) for task, _ in shown), SETS_AT_ONCE):
        if isinstance(found, str):
            unknown.append(found)
        else:
            items += found
    next_after = cursor("attempts", shown[-1]) if len(listed) > len(shown) else None
    return Page(items=tuple(items), next_after=next_after, unknown=tuple(unknown))


def _of_task(
    folder: JobFolder, commit: _Commit, shown: Collection[tuple[str, str]], task: TaskId
) -> list[Attempt] | str:
    """Return those of the committed attempts of one task that the page shows, or why they cannot be read."""
    try:
        sets = list(folder.pending_sets(task))
        aborted = folder.aborted_attempts(task)
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return f"task {task}: {error}"
    job_attempt, expected, decision = commit
    counting: set[AttemptId] | None = None
    if decision is not None and decision.verdict != "commit":
        counting = set()
    elif job_attempt is not None:
        counting = _counting(list(eligible(sets, job_attempt, expected, aborted)), expected, decision)
    return [
        Attempt(
            task_id=task,
            attempt_id=record.attempt_id,
            job_attempt=record.job_attempt,
            committed_s=record.created_s,
            files=len(record.files),
            rows=total_rows(file.rows for file in record.files),
            size_bytes=sum(file.upload.size for file in record.files),
            counts=None if counting is None else record.attempt_id in counting,
        )
        for record, *_ in sets
        if (task, record.attempt_id) in shown
    ]


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
    is_whole = begin is None and len(found) <= limit
    counts = _all_count(reading.get(Job, place, job_id), found if is_whole else ())
    return page_of(
        "attempts",
        found,
        limit,
        lambda row: (row.task_id, row.attempt_id),
        lambda row: Attempt(
            task_id=row.task_id,
            attempt_id=row.attempt_id,
            job_attempt=row.job_attempt,
            committed_s=row.committed_s,
            files=row.files,
            rows=row.rows,
            size_bytes=row.size_bytes,
            counts=counts,
        ),
    )


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
