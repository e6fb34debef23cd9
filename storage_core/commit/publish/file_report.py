"""What became of every file of a job, in bounded memory: long reports go to the store as shards.

Source: commit protocol, "What lies where" (`report.json`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockgate.storage_core.commit.records.job import FateShard, FileFate
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, read_shard, write_shard
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import check_id


@dataclass
class Fates:
    """What became of files, as this process saw it; a thousand in memory, the rest in the job's folder.

    Attributes:
        folder: Of the job.
        counts: How many files met each fate.
        shards: Digests of what has gone to the store, `report/<digest>.json`.
    """

    folder: JobFolder
    counts: Counter[str] = field(default_factory=Counter)
    shards: list[str] = field(default_factory=list)
    _held: list[FileFate] = field(default_factory=list)
    _named: set[bytes] = field(default_factory=set)

    def add(self, fate: FileFate) -> None:
        """Note a file's fate; the first one counts, so a loser's upload does not hide the winner's file."""
        name = hashlib.blake2b(fate.key.encode(), digest_size=16).digest()
        if name in self._named:
            return
        self._named.add(name)
        self.counts[fate.fate] += 1
        if len(self._held) == SHARD_ENTRIES:
            self._spill()
        self._held.append(fate)

    def held(self) -> tuple[FileFate, ...]:
        """Return those that are in no shard."""
        return tuple(self._held)

    def _spill(self) -> None:
        with step("report"):
            record = FateShard(fates=tuple(self._held))
            self.shards.append(write_shard(self.folder.store, lambda name: _key(self.folder, name), record))
        self._held.clear()


def read_fates(folder: JobFolder) -> Iterator[FileFate]:
    """Yield what the job's report says of every file, a shard in memory at a time; nothing before its end.

    Raises:
        MalformedRecordError: The report or a shard is not what it should be.
    """
    report = folder.report()
    if report is None:
        return
    for name in report.shards:
        yield from read_shard(folder.store, FateShard, lambda name: _key(folder, name), name).fates
    yield from report.fates


def _key(folder: JobFolder, name: str) -> str:
    return folder.key(f"report/{check_id('shard digest', name)}.json")
