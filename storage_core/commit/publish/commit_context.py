"""What each step of the protocol needs: the job, the settings, the clock, and the report of the job's files.

Source: commit protocol, "What lies where" (`report.json`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.publish.shard_completion import ShardCompleter
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.report import FileResult, FileResultShard, Report
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, read_shard, write_shard
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import check_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store


@dataclass
class FileReport:
    """Results of files, as this process knows them: a thousand in memory, the rest in the job's folder.

    Attributes:
        folder: Folder of the job.
        counts: Number of files of each result.
        shards: Digests of the stored shards, `report/<digest>.json`.
        first: First file of each result.
    """

    folder: JobFolder
    counts: Counter[str] = field(default_factory=Counter)
    shards: list[str] = field(default_factory=list)
    first: dict[str, FileResult] = field(default_factory=dict)
    _unstored: list[FileResult] = field(default_factory=list)
    _key_digests: set[bytes] = field(default_factory=set)

    def add(self, file: FileResult) -> None:
        """Add the result of a file. The first one counts: an aborted upload does not hide a publication."""
        key_digest = hashlib.blake2b(file.key.encode(), digest_size=16).digest()
        if key_digest in self._key_digests:
            return
        self._key_digests.add(key_digest)
        self.counts[file.result] += 1
        self.first.setdefault(file.result, file)
        if len(self._unstored) == SHARD_ENTRIES:
            self._write_shard()
        self._unstored.append(file)

    def write(self, report: Report) -> None:
        """Store the job's report with these results in place of its own."""
        whole = msgspec.structs.replace(
            report, counts=dict(self.counts), shards=tuple(self.shards), files=tuple(self._unstored)
        )
        self.folder.store.put(self.folder.key("report.json"), encode(whole))

    def _write_shard(self) -> None:
        with step("report"):
            record = FileResultShard(files=tuple(self._unstored))
            self.shards.append(write_shard(self.folder.store, partial(_key, self.folder), record))
        self._unstored.clear()


def read_file_results(folder: JobFolder) -> Iterator[FileResult]:
    """Yield the result of each file, with one shard in memory at a time; nothing before the job's end.

    Raises:
        MalformedRecordError: The report or a shard cannot be read.
    """
    report = folder.report()
    if report is None:
        return
    for shard in range(len(report.shards) + 1):
        yield from read_result_shard(folder, report, shard)


def read_result_shard(folder: JobFolder, report: Report, shard: int) -> tuple[FileResult, ...]:
    """Return the files in one shard of a report; the last shard is in the report itself.

    Raises:
        MalformedRecordError: The shard cannot be read.
    """
    if shard == len(report.shards):
        return report.files
    return read_shard(folder.store, FileResultShard, partial(_key, folder), report.shards[shard]).files


def _key(folder: JobFolder, name: str) -> str:
    return folder.key(f"report/{check_id('shard digest', name)}.json")


@dataclass
class TablesBehind:
    """What this process knows of the destination's tables.

    Attributes:
        text: Which are behind the job's turn, and why; empty if none is.
        is_waiting: Whether they may be brought up to it later, with nothing else changed.
    """

    text: str = ""
    is_waiting: bool = False


@dataclass(frozen=True)
class CommitContext:
    """The work of one process on one decided job.

    Attributes:
        tasks: Number of tasks that the job publishes, if this process has selected them.
    """

    folder: JobFolder
    job: JobRecord
    settings: Settings
    clock: Clock
    progress: Progress = no_progress
    completer: ShardCompleter | None = None
    tasks: int | None = None
    tables: TablesBehind = field(default_factory=TablesBehind)

    @cached_property
    def report(self) -> FileReport:
        """Results of the job's files, as this process knows them."""
        return FileReport(self.folder)

    @property
    def store(self) -> Store:
        """Store, opened at the destination."""
        return self.folder.store
