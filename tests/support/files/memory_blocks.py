"""The blocks of one file in a journal in memory, as several holders of its lease change them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from lockgate.storage_core.errors import ConflictError, FencedError, OutcomeUnknownError
from lockgate.storage_core.files.blocks import BlockRecord, Opened
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp


@dataclass
class MemoryJournal:
    """One file.

    Attributes:
        members: The volumes of new blocks.
        holder: The holder of the lease.
        commits: Each commit, in order.
        is_lossy: Whether the answer of the next commit is lost.
        entries: Number of entries.
        noted: Acknowledged lengths that the next renewal stores.
        acknowledged: Those that a renewal has stored.
    """

    members: tuple[VolumeId, ...]
    holder: str = ""
    rows: dict[BlockId, BlockRecord] = field(default_factory=dict)
    commits: list[BlockRecord] = field(default_factory=list)
    is_lossy: bool = False
    entries: int = 0
    is_closed: bool = False
    noted: dict[tuple[BlockId, Stamp], int] = field(default_factory=dict)
    acknowledged: dict[tuple[BlockId, Stamp], int] = field(default_factory=dict)

    def renew(self) -> None:
        """Store what a renewal of the lease stores."""
        self.acknowledged.update(self.noted)

    def number(self) -> Stamp:
        """Write an entry."""
        self.entries += 1
        return Stamp(1, self.entries)


@dataclass
class MemoryBlocks:
    """`JournalBlocks` of one holder; it takes the lease when it is made."""

    journal: MemoryJournal
    holder: str

    def __post_init__(self) -> None:
        self.journal.holder = self.holder
        self.journal.is_closed = False

    def end(self) -> Opened:
        rows = self.records()
        before_bytes = sum(row.length_bytes for row in rows[:-1])
        return Opened(0, Stamp(), before_bytes, rows[-1] if rows else None)

    def records(self) -> tuple[BlockRecord, ...]:
        return tuple(self.journal.rows.values())

    def record(self, block: BlockId) -> BlockRecord:
        return self.journal.rows[block]

    def add(self, last: BlockRecord | None = None) -> BlockRecord:
        self._check()
        if last is not None and self.journal.rows[last.block] != last:  # else its answer was lost
            self.commit(last)
        stamp = self.journal.number()
        block = BlockId(stamp.sequence)
        row = BlockRecord(block, stamp, self.journal.members, 0, ReplicaState.WRITING)
        self.journal.rows[block] = row
        return row

    def acknowledged(self, block: BlockId, stamp: Stamp) -> int:
        return self.journal.acknowledged.get((block, stamp), 0)

    def note_acknowledged(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        self.journal.noted[block, stamp] = length_bytes

    def stamp(self, block: BlockId, target_bytes: int | None) -> BlockRecord:
        self._check()
        row = self.journal.rows[block]
        target = row.target_bytes if row.target_bytes is not None else target_bytes
        row = msgspec.structs.replace(row, pending=self.journal.number(), target_bytes=target)
        self.journal.rows[block] = row
        return row

    def commit(self, wanted: BlockRecord) -> BlockRecord:
        self._check()
        row = self.journal.rows[wanted.block]
        if row.newest != wanted.stamp:
            raise FencedError(f"block {wanted.block} has {row.newest}, not {wanted.stamp}")
        self.journal.number()
        row = BlockRecord(wanted.block, wanted.stamp, wanted.members, wanted.length_bytes, wanted.state)
        self.journal.rows[wanted.block] = row
        self.journal.commits.append(row)
        if self.journal.is_lossy:
            self.journal.is_lossy = False
            raise OutcomeUnknownError("commit: the answer was lost on purpose")
        return row

    def close(self, last: BlockRecord | None = None) -> None:
        if self.journal.is_closed:
            return  # its answer was lost
        self._check()
        left = [row for row in self.journal.rows.values() if last is None or row.block != last.block]
        if any(row.state is not ReplicaState.SEALED for row in left):
            raise ConflictError("a block is not sealed")
        if last is not None:
            try:
                self.commit(last)
            except OutcomeUnknownError:
                self.journal.is_closed = True
                raise
        self.journal.is_closed = True

    def _check(self) -> None:
        if self.journal.holder != self.holder:
            raise FencedError(f"{self.journal.holder} has the lease, not {self.holder}")
