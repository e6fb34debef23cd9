"""Compact a destination: one job that replaces exactly the small files that it has read.

Readers of the log see the small files or the large ones. Files that other jobs publish meanwhile are not
touched; if another job replaces one of the files that were read, the compaction is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobOrigin
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.compaction.merge import Merged, merge_here, merge_on_spark
from lockgate.storage_core.compaction.small_files import (
    LeftFile,
    MergeGroup,
    SmallFiles,
    find_small_files,
    without,
)
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import TaskId
from lockgate.storage_core.parquet.parquet_file import MIB
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store

TARGET_BYTES: Final = 256 * MIB
Run = Callable[[Job, Sequence[MergeGroup]], Iterator[Merged]]


class MergedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a compaction in one partition: so many files become so many."""

    partition: str
    files: int
    size: int
    into: int


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction has done, or would do.

    Attributes:
        destination: URL of the destination.
        files_before: Live files in the chosen partitions when they were read.
        files_after: Live files without those that were merged, and with the new ones.
        merged: Partitions with files that were merged.
        left: Small files that cannot be merged.
        receipt: Receipt of the job; None of a dry run, or if there was nothing to merge.
    """

    destination: str
    files_before: int
    files_after: int
    size_before: int
    merged: tuple[MergedPartition, ...]
    left: tuple[LeftFile, ...]
    receipt: Receipt | None = None


def compact(
    destination: str,
    *,
    partitions: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    dry_run: bool = False,
    spark: Any = None,
    name: str | None = None,
    origin: JobOrigin | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress = no_progress,
) -> Compaction:
    """Merge the small Parquet files of a destination, as one job of mode `compact`.

    Rows, schema, partition folders and compression stay. Files of at least the target size, and a single
    small file of a partition, are left, and so are files that cannot be read or merged without loss. Each new
    file is written with one row group in memory.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        partitions: Folders such as `day=1`, with all below them; empty for the whole destination.
        target_bytes: Size that new files should have at most.
        dry_run: Only return what would be merged; nothing is written.
        spark: Spark session, in whose tasks the files are merged; None: in threads of this process.
        name: Name of the job, stable over retries: a retry takes what an earlier try has merged. By default a
            new one.
        origin: The Airflow task that runs the compaction.
        settings: Settings; by default those of the environment.
        clock: Clock, for tests.
        progress: Called with step, done and total.

    Returns:
        Counts before and after, what was left, and the receipt.

    Raises:
        InvalidInputError: An argument is invalid, or a partition has no live file.
        ConflictError: Another job has replaced or changed a file that was read. The compaction is aborted,
            and nothing is lost; run it again.
        OutcomeUnknownError: It is unknown whether the job is decided; recovery resolves it.
    """
    if target_bytes < 1:
        raise InvalidInputError(f"target_bytes={target_bytes} must be at least 1; nothing was changed")
    settings = settings or load_settings()
    store = open_store(destination, settings)
    find = partial(
        find_small_files, store, settings, progress, partitions=partitions, target_bytes=target_bytes
    )
    small = find()
    if dry_run or not small.groups:
        return _compaction(store.url, small, None)
    run = partial(merge_here, settings) if spark is None else partial(merge_on_spark, spark)
    with open_job(
        destination,
        name or f"compact-{uuid4()}",
        mode="compact",
        committer="magic",
        description=f"compaction of {sum(len(group.files) for group in small.groups)} files",
        origin=origin,
        settings=settings,
        clock=clock,
        progress=progress,
    ) as job:
        if job.receipt is not None:
            small = find()  # an earlier try was decided, and is finished now: it may have merged all these
            small.groups.clear()
            return _compaction(store.url, small, job.receipt)
        _merge_all(job, small, run, progress)
        return _compaction(store.url, small, _commit(job, small))


def compact_on_spark(spark: Any, **options: Any) -> Any:
    """Compact in the tasks of a session, as a child process of Airflow does; return JSON values."""
    return msgspec.to_builtins(compact(spark=spark, **options))


def _merge_all(job: Job, small: SmallFiles, run: Run, progress: Progress) -> None:
    """Commit a task for each group; a file that cannot be read leaves its group, which is merged again."""
    found = {saved.record.input_digest for saved in JobFolder(job.store, job.job_id).pending_sets()}
    waiting = {group.task_id: group for group in small.groups if group.digest not in found}
    while waiting:
        failed: list[tuple[TaskId, LeftFile]] = []
        for number, merged in enumerate(run(job, list(waiting.values())), start=1):
            progress("merge", number, len(waiting))
            failed += [(merged.task_id, merged.left)] if merged.left else []
        retried = {}
        for task_id, left in failed:
            group = waiting[task_id]
            rest = without(group, left)
            small.left.append(left)
            small.groups.remove(group)
            if rest is not None:
                small.groups.append(rest)
                retried[rest.task_id] = rest
        waiting = retried


def _commit(job: Job, small: SmallFiles) -> Receipt | None:
    """Commit the merged groups; None, and an aborted job, if no group is left."""
    merged = {key: small.named[key] for group in small.groups for key, *_ in group.files}
    if not merged:
        job.abort("no file could be merged")
        return None
    job.expect([ExpectedTask(task_id=group.task_id, input_digest=group.digest) for group in small.groups])
    return job.commit(replaces=merged)


def _compaction(url: str, small: SmallFiles, receipt: Receipt | None) -> Compaction:
    partitions: dict[str, list[MergeGroup]] = {}
    for group in small.groups:
        partitions.setdefault(group.partition, []).append(group)
    merged = sum(len(group.files) for group in small.groups)
    files, size = small.before
    return Compaction(
        destination=url,
        files_before=files,
        files_after=files - merged + len(small.groups),
        size_before=size,
        merged=tuple(
            MergedPartition(
                partition=partition,
                files=sum(len(group.files) for group in groups),
                size=sum(group.size for group in groups),
                into=len(groups),
            )
            for partition, groups in sorted(partitions.items())
        ),
        left=tuple(small.left),
        receipt=receipt,
    )
