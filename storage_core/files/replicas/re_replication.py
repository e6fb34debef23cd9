"""Re-replication: whole copies of sealed blocks that have too few good replicas.

A copy is read from a good member, whose checksums hold, sealed at the block's stamp, read back, and only then
journaled by compare-and-swap. A process that dies before the entry leaves a replica that no block names: it
is left over. A block that is being written is never copied.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    JournalUnavailableError,
    NotAppliedError,
    OutcomeUnknownError,
    SafeModeError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.member_marks import AddMember
from lockgate.storage_core.files.namespace.queries import PAGE, block, records
from lockgate.storage_core.files.namespace.rows import DETACHED, Block
from lockgate.storage_core.files.replicas.replica_bytes import pieces, stat_replica
from lockgate.storage_core.files.replicas.replica_faults import is_settled
from lockgate.storage_core.files.volumes.protocol import BlockId, ReplicaState, Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode

T = TypeVar("T")

_STOPS: Final = (JournalUnavailableError, SafeModeError, StateLostError)
"""Errors that all further copies would meet, too."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a block with too few good replicas.

    Attributes:
        block: The block.
        volume: The new member; None if no volume took a copy, or none was tried.
        length_bytes: Length of the block.
        why_not: Why it still has too few; empty if a copy was made, or none was tried.
    """

    block: BlockId
    length_bytes: int
    volume: VolumeId | None = None
    why_not: str = ""


class ReReplication:
    """Copies of blocks.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        targets: Those that may get copies.
        replicas: Number of good replicas that each block is to have, if there are as many targets.
        within_s: Limit for one copy: not longer than the time between the passes of `delete_left_over`.
        bytes_per_s: Limit of what is copied.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        targets: Collection[VolumeId],
        *,
        replicas: int,
        within_s: float,
        bytes_per_s: float | None = None,
    ) -> None:
        self._journal = journal
        self._volumes = volumes
        self._targets = sorted(targets)
        self._replicas = replicas
        self._within_s = within_s
        self._bytes_per_s = bytes_per_s
        self._free: dict[VolumeId, int] = {}

    def run(self, *, dry_run: bool = False) -> Iterator[Copied]:
        """Copy each block with too few good replicas until it has enough, and yield the outcomes.

        Args:
            dry_run: Only yield the blocks.

        Raises:
            SafeModeError: The journal is in safe mode; nothing more is copied.
        """
        self._free = {volume: free for volume in self._targets if (free := self._space(volume)) is not None}
        for record in self._lacking():
            if dry_run:
                yield Copied(block=record.block, length_bytes=record.length_bytes)
                continue
            now = record
            while self._lacks(now):
                copied = self._add(now)
                yield copied
                if copied.why_not:
                    break
                with self._journal.reading() as reading:
                    now = block(reading, record.block)

    def _lacking(self) -> Iterator[BlockRecord]:
        after: tuple[int] | None = None
        while True:
            with self._journal.reading() as reading:
                rows = reading.where(Block, {}, limit=PAGE, after=after)
                page = list(records(reading, [row for row in rows if row.file != DETACHED]))
            yield from (record for record in page if self._lacks(record))
            if len(rows) < PAGE:
                return
            after = (rows[-1].block,)

    def _wanted(self, record: BlockRecord) -> int:
        """Return how many good replicas a block is to have: a marked one is replaced."""
        return max(min(self._replicas, len(self._targets)), len(record.members) + len(record.faults))

    def _lacks(self, record: BlockRecord) -> bool:
        return is_settled(record) and 0 < len(record.members) < self._wanted(record)

    def _add(self, record: BlockRecord) -> Copied:
        why = "no volume that has none of its replicas and enough space answers"
        others = [one for one in self._by_space(record.length_bytes) if one not in record.members]
        in_place = [one for one in others if one in record.faults]
        in_place.sort(key=lambda one: record.faults[one] is not Fault.LOST)
        for volume in (*(one for one in others if one not in record.faults), *in_place):
            instead_of = volume if volume in in_place else next(iter(sorted(record.faults)), None)
            try:
                self._copy(record, volume, instead_of)
            except _STOPS:
                raise
            except (NotAppliedError, OutcomeUnknownError, FencedError) as error:
                why = f"volume {volume}: {error}"
                if self._is_changed(record):
                    break  # another process writes, copies or removes it
                continue
            self._free[volume] -= record.length_bytes
            return Copied(block=record.block, length_bytes=record.length_bytes, volume=volume)
        return Copied(block=record.block, length_bytes=record.length_bytes, why_not=why)

    def _is_changed(self, record: BlockRecord) -> bool:
        with self._journal.reading() as reading:
            row = reading.get(Block, record.block)
            return row is None or list(records(reading, [row])) != [record]

    def _by_space(self, length: int) -> list[VolumeId]:
        fitting = [volume for volume, free in self._free.items() if free >= length]
        return sorted(fitting, key=lambda volume: (-self._free[volume], volume))

    def _copy(self, record: BlockRecord, volume: VolumeId, instead_of: VolumeId | None) -> None:
        refuse_in_safe_mode(self._journal, "a copy of a block")
        with self._journal.reading() as reading:
            until_s = reading.now_s() + self._within_s
        to = known_volume(self._volumes, volume)
        if stat_replica(to, record.block) is not None:
            if volume not in record.faults:
                raise ConflictError(
                    f"it has another replica of block {record.block}, which must be deleted first"
                )
            _at("quarantine", lambda: to.quarantine(record.block, record.stamp))
        _at("create", lambda: to.create(record.block, record.stamp))
        crc = self._fill(record, to)
        _at(
            "finish",
            lambda: to.finish(record.block, record.stamp, record.length_bytes, ReplicaState.SEALED),
        )
        back = 0
        for offset, size in pieces(record.length_bytes):
            back = zlib.crc32(to.read(record.block, record.stamp, offset, size), back)
        if back != crc:
            raise StoreUnavailableError(f"the copy of block {record.block} has other bytes; it is not used")
        entry = AddMember(
            block=record.block,
            volume=volume,
            generation=record.stamp,
            instead_of=instead_of,
            most=self._wanted(record),
            until_s=until_s,
        )
        _at("entry", lambda: self._journal.apply(entry))

    def _fill(self, record: BlockRecord, to: Volume) -> int:
        """Append the bytes of a good member to a copy, and return their checksum."""
        crc = 0
        for offset, size in pieces(record.length_bytes):
            data = self._read(record, offset, size)
            crc = zlib.crc32(data, crc)
            _at("append", partial(to.append, record.block, record.stamp, offset, data))
            if self._bytes_per_s is not None:
                self._journal.clock.sleep(size / self._bytes_per_s)
        return crc

    def _read(self, record: BlockRecord, offset: int, size: int) -> bytes:
        said = "it has none"
        for member in record.members:
            try:
                data = known_volume(self._volumes, member).read(record.block, record.stamp, offset, size)
            except (NotAppliedError, OutcomeUnknownError) as error:
                said = str(error)
                continue
            if len(data) == size:
                return data
        raise StoreUnavailableError(f"no good member of block {record.block} serves byte {offset}: {said}")

    def _space(self, volume: VolumeId) -> int | None:
        try:
            return known_volume(self._volumes, volume).usage().free_bytes
        except (NotAppliedError, OutcomeUnknownError):
            return None


def _at(point: str, call: Callable[[], T]) -> T:
    """Make a call between two failpoints."""
    FAILPOINTS.hit(f"copy.{point}.before")
    result = call()
    FAILPOINTS.hit(f"copy.{point}.after")
    return result
