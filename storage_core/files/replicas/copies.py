"""Whole copies of sealed blocks that have too few good replicas, or whose volume is leaving.

A copy is read from good members, whose checksums hold, sealed at the block's stamp, read back, and only then
journaled by compare-and-swap. A process that dies before the entry leaves a replica that no block names: it
is left over. Where a damaged one was, that one stays until the copy is whole: it has good parts, too. A block
that is being written is never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    JournalUnavailableError,
    MalformedRecordError,
    NotAppliedError,
    OutcomeUnknownError,
    SafeModeError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, around
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.namespace.members import AddMember
from lockgate.storage_core.files.namespace.queries import PAGE, paths_of, records
from lockgate.storage_core.files.namespace.rows import Block, VolumeState
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import check_limit, pieces, read_block, stat_replica
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId, is_url
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode

_STOPS: Final = (JournalUnavailableError, SafeModeError, StateLostError)
"""Errors that all further copies would meet, too."""
_FAILS: Final = (NotAppliedError, OutcomeUnknownError, FencedError)
"""Errors of one copy."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a block.

    Attributes:
        volume: The new member; None if no volume took a copy, or none was tried.
        why_not: Why there is no copy; empty if there is one, or none was tried.
    """

    block: BlockId
    volume: VolumeId | None = None
    why_not: str = ""


@dataclass
class Copies:
    """Copies of blocks to registered volumes in use. Replicas on those that are leaving or lost do not count.

    Args:
        replicas: Number of good replicas that each block is to have, if there are as many targets.
        within_s: Limit for one copy: not longer than the time between the passes of `delete_replicas`.
        bytes_per_s: Limit of what is copied. A block that would take more than half of `within_s` is copied
            faster.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    journal: Journal
    volumes: Mapping[VolumeId, Volume]
    _: KW_ONLY
    replicas: int
    within_s: float
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_limit(self.bytes_per_s)
        registered = read_registered(self.journal)
        targets = [one for one, row in registered.items() if row.url and row.state is VolumeState.IN_USE]
        self._out = {one: row.state for one, row in registered.items() if row.state is not VolumeState.IN_USE}
        self._targets = min(self.replicas, len(targets))
        self._free = {volume: free for volume in targets if (free := self._space(volume)) is not None}

    def run(self, *, dry_run: bool = False) -> Iterator[Copied]:
        """Copy each block with too few good replicas until it has enough, and yield the outcomes.

        Args:
            dry_run: Only yield the blocks.

        Raises:
            SafeModeError: The journal is in safe mode; nothing more is copied.
        """
        for record in self._lacking():
            if dry_run:
                yield Copied(block=record.block)
                continue
            now: BlockRecord | None = record
            while now is not None and self._lacks(now):
                copied = self._add(now)
                yield copied
                if copied.why_not:
                    break
                now = read_block(self.journal, record.block)

    def may_leave(self, record: BlockRecord, volume: VolumeId) -> bool:
        """Return whether a block does without a volume: it has enough others, or that one is lost."""
        others = set(record.members) - {volume}
        is_enough = self._out[volume] is VolumeState.LOST or len(self._good(record)) >= self._wanted(record)
        return record.is_settled and bool(others) and is_enough

    def _lacking(self) -> Iterator[BlockRecord]:
        after: tuple[int] | None = None
        while True:
            with self.journal.reading() as reading:
                rows = reading.where(Block, {}, limit=PAGE, after=after)
                lacking = {one.block: one for one in records(reading, rows) if self._lacks(one)}
                paths = paths_of(reading, {row.file for row in rows if row.block in lacking})
            yield from (one for row in rows if row.file in paths and (one := lacking.get(BlockId(row.block))))
            if len(rows) < PAGE:
                return
            after = (rows[-1].block,)

    def _good(self, record: BlockRecord) -> list[VolumeId]:
        return [volume for volume in record.members if volume not in self._out]

    def _wanted(self, record: BlockRecord) -> int:
        """Return how many good replicas a block is to have: one that is marked or leaving is replaced."""
        known = {*record.members, *record.faults}
        return max(self._targets, len(known - self._out.keys()), 1)

    def _lacks(self, record: BlockRecord) -> bool:
        """Return whether a block has too few; that of a job's log has one, at the job's destination."""
        is_log = any(map(is_url, record.members))
        has_source = any(self._out.get(volume) is not VolumeState.LOST for volume in record.members)
        lacks = len(self._good(record)) < self._wanted(record)
        return record.is_settled and not is_log and has_source and lacks

    def _add(self, record: BlockRecord) -> Copied:
        """Copy a block to the first volume that takes a copy; see `AddMember`."""
        why = "no volume that has none of its replicas and enough space answers"
        faults, free = record.faults, self._free
        targets = [one for one in free if free[one] >= record.length_bytes and one not in record.members]
        targets.sort(key=lambda one: (one in faults, faults.get(one) is not Fault.LOST, -free[one], one))
        for volume in targets:
            try:
                self._copy(record, volume)
            except _STOPS:
                raise
            except _FAILS as error:
                why = f"volume {volume}: {error}"
                if self._is_changed(record):
                    break  # another process writes, copies or removes it
                continue
            self._free[volume] -= record.length_bytes
            return Copied(block=record.block, volume=volume)
        return Copied(block=record.block, why_not=why)

    def _copy(self, record: BlockRecord, volume: VolumeId) -> None:
        """Copy a block and journal the member; the copy takes the place of a replica with a fault."""
        refuse_in_safe_mode(self.journal, "a copy of a block")
        with self.journal.reading() as reading:
            began_s = reading.now_s()
        at, stamp, length = record.block, record.stamp, record.length_bytes
        to = known_volume(self.volumes, volume)
        if stat_replica(to, at) is not None:
            if volume not in record.faults:
                raise ConflictError(f"it has another replica of block {at}, which must be deleted first")
            if self._is_changed(record):  # another process may have made a good copy there
                raise ConflictError(f"block {at} has changed; nothing was copied")
        crc = back = 0

        def read() -> Iterator[bytes]:
            nonlocal crc
            for offset, size in pieces(length):
                data = self._read(record, offset, size)
                crc = crc32c(data, crc)
                FAILPOINTS.hit("copy.piece.after")
                yield data
                if self.bytes_per_s is not None:
                    self.journal.clock.sleep(size / max(self.bytes_per_s, 2 * length / self.within_s))

        around("copy.store", lambda: to.store(at, stamp, read()))
        for offset, size in pieces(length):
            back = crc32c(to.read(at, stamp, offset, size), back)
        if back != crc:
            raise StoreUnavailableError(f"the copy of block {at} has other bytes; it is not used")
        fault = next(iter(sorted(record.faults)), None)
        entry = AddMember(
            block=at,
            volume=volume,
            generation=stamp,
            instead_of=volume if volume in record.faults else fault,
            most=self._wanted(record) + len(record.members) - len(self._good(record)),
            until_s=began_s + self.within_s,
        )
        around("copy.entry", lambda: self.journal.apply(entry))

    def _is_changed(self, record: BlockRecord) -> bool:
        """Return whether another process has changed or removed a block since it was read."""
        return read_block(self.journal, record.block) != record

    def _read(self, record: BlockRecord, offset: int, size: int) -> bytes:
        """Return bytes of a block from any member; a piece that none has whole is read in halves."""
        # A damaged member has good parts, too: a volume checks what it reads.
        damaged = [volume for volume, fault in record.faults.items() if fault is Fault.CORRUPT]
        said = "it has none"
        is_damaged = False
        for member in (*record.members, *damaged):
            try:
                data = known_volume(self.volumes, member).read(record.block, record.stamp, offset, size)
            except (NotAppliedError, OutcomeUnknownError) as error:
                is_damaged = is_damaged or isinstance(error, MalformedRecordError)
                said = str(error) if member in record.members else said
                continue
            if len(data) == size:
                return data
        if is_damaged and size > 1:
            half = size // 2
            return self._read(record, offset, half) + self._read(record, offset + half, size - half)
        raise StoreUnavailableError(f"no good member of block {record.block} serves byte {offset}: {said}")

    def _space(self, volume: VolumeId) -> int | None:
        try:
            return known_volume(self.volumes, volume).usage().free_bytes
        except (NotAppliedError, OutcomeUnknownError):
            return None
