"""Whole copies of sealed blocks that have too few good replicas, or whose volume is to be removed.

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
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId, is_url
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a block with too few good replicas.

    Attributes:
        block: The block.
        volume: The new member; None if no volume took a copy, or none was tried.
        why_not: Why it still has too few; empty if a copy was made, or none was tried.
    """

    block: BlockId
    volume: VolumeId | None = None
    why_not: str = ""


class ReReplication:
    """Copies of blocks.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        targets: Those that may get copies.
        copier: Makes the copies.
        replicas: Number of good replicas that each block is to have, if there are as many targets.
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
        self._replicas = min(replicas, len(targets))
        self._free = {volume: free for volume in self._targets if (free := self._space(volume)) is not None}

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
            now = record
            while self._lacks(now):
                copied = self._add(now)
                yield copied
                if copied.why_not:
                    break
                with self._journal.reading() as reading:
                    now = block(reading, record.block)

    def is_enough(self, record: BlockRecord, volume: VolumeId) -> bool:
        """Return whether a block has enough good replicas without a volume."""
        others = set(record.members) - {volume}
        return len(others) >= (1 if volume in record.faults else max(self._replicas, 1))

    def move(self, record: BlockRecord, volume: VolumeId) -> Copied:
        """Copy a sealed block to a volume without a replica, which becomes a member in place of another.

        Args:
            record: The block.
            volume: The member that it replaces.
        """
        return self._copy(
            record,
            [
                one
                for one in self._by_space(record.length_bytes)
                if one not in {*record.members, *record.faults}
            ],
            instead_of=volume,
            most=len(record.members),
            is_move=True,
        )

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
        return max(self._replicas, len(record.members) + len(record.faults))

    def _lacks(self, record: BlockRecord) -> bool:
        """Return whether a block has too few; that of a job's log has one, at the job's destination."""
        is_log = any(map(is_url, record.members))
        return record.is_settled and not is_log and 0 < len(record.members) < self._wanted(record)

    def _add(self, record: BlockRecord) -> Copied:
        others = [one for one in self._by_space(record.length_bytes) if one not in record.members]
        others.sort(key=lambda one: (one in record.faults, record.faults.get(one) is not Fault.LOST))
        return self._copy(
            record,
            others,
            instead_of=next(iter(sorted(record.faults)), None),
            most=self._wanted(record),
            is_move=False,
        )

    def _copy(
        self,
        record: BlockRecord,
        targets: Collection[VolumeId],
        *,
        instead_of: VolumeId | None,
        most: int,
        is_move: bool,
    ) -> Copied:
        why = "no volume that has none of its replicas and enough space answers"
        for volume in targets:
            replaced = volume if volume in record.faults else instead_of
            try:
                self._copier.copy(record, volume, instead_of=replaced, most=most, is_move=is_move)
            except STOPS:
                raise
            except FAILS as error:
                why = f"volume {volume}: {error}"
                if self._copier.is_changed(record):
                    break  # another process writes, copies or removes it
                continue
            self._free[volume] -= record.length_bytes
            return Copied(block=record.block, volume=volume)
        return Copied(block=record.block, why_not=why)

    def _by_space(self, length: int) -> list[VolumeId]:
        fitting = [volume for volume, free in self._free.items() if free >= length]
        return sorted(fitting, key=lambda volume: (-self._free[volume], volume))

    def _space(self, volume: VolumeId) -> int | None:
        try:
            return known_volume(self._volumes, volume).usage().free_bytes
        except (NotAppliedError, OutcomeUnknownError):
            return None
