"""Re-replication: whole copies of sealed blocks that have too few good replicas.

A copy is read from a good member, whose checksums hold, sealed at the block's stamp, read back, and only then
journaled by compare-and-swap. A process that dies before the entry leaves a replica that no block names: it
is left over. A block that is being written is never copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.queries import PAGE, block, records, undeleted
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.replicas.block_copy import FAILS, STOPS, BlockCopier
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal


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
        copier: Makes the copies.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        targets: Collection[VolumeId],
        copier: BlockCopier,
        *,
        replicas: int,
    ) -> None:
        self._journal = journal
        self._volumes = volumes
        self._targets = sorted(targets)
        self._copier = copier
        self._replicas = replicas
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
                lacking = {one.block: one for one in records(reading, rows) if self._lacks(one)}
                kept = undeleted(reading, [row for row in rows if row.block in lacking])
            yield from (lacking[BlockId(row.block)] for row in kept)
            if len(rows) < PAGE:
                return
            after = (rows[-1].block,)

    def _wanted(self, record: BlockRecord) -> int:
        """Return how many good replicas a block is to have: a marked one is replaced."""
        return max(min(self._replicas, len(self._targets)), len(record.members) + len(record.faults))

    def _lacks(self, record: BlockRecord) -> bool:
        return record.is_settled and 0 < len(record.members) < self._wanted(record)

    def _add(self, record: BlockRecord) -> Copied:
        why = "no volume that has none of its replicas and enough space answers"
        others = [one for one in self._by_space(record.length_bytes) if one not in record.members]
        in_place = [one for one in others if one in record.faults]
        in_place.sort(key=lambda one: record.faults[one] is not Fault.LOST)
        for volume in (*(one for one in others if one not in record.faults), *in_place):
            instead_of = volume if volume in in_place else next(iter(sorted(record.faults)), None)
            try:
                most = self._wanted(record)
                self._copier.copy(record, volume, instead_of=instead_of, most=most, is_move=False)
            except STOPS:
                raise
            except FAILS as error:
                why = f"volume {volume}: {error}"
                if self._copier.is_changed(record):
                    break  # another process writes, copies or removes it
                continue
            self._free[volume] -= record.length_bytes
            return Copied(block=record.block, length_bytes=record.length_bytes, volume=volume)
        return Copied(block=record.block, length_bytes=record.length_bytes, why_not=why)

    def _by_space(self, length: int) -> list[VolumeId]:
        fitting = [volume for volume, free in self._free.items() if free >= length]
        return sorted(fitting, key=lambda volume: (-self._free[volume], volume))

    def _space(self, volume: VolumeId) -> int | None:
        try:
            return known_volume(self._volumes, volume).usage().free_bytes
        except (NotAppliedError, OutcomeUnknownError):
            return None
