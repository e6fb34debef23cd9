"""Rebalancing: blocks are moved between volumes until each uses about the same share of its space.

A move is a whole copy, one entry that puts the new member in the place of the old one by compare-and-swap,
and later the deletion of the old replica, which is left over by then. So a block has as many good members
after each step as before. A block that is being written is never moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.namespace.queries import PAGE, records
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, Member
from lockgate.storage_core.files.replicas.block_copy import FAILS, STOPS, BlockCopier
from lockgate.storage_core.files.volumes.protocol import UNLIMITED_BYTES, Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal

THRESHOLD: Final = 0.1
"""Difference from the mean share of used space that is left as it is."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The move of one block.

    Attributes:
        block: The block.
        length_bytes: Its length.
        source: Its member before.
        target: Its member after.
        why_not: Why it was not moved; empty if it was, or in a dry run.
    """

    block: BlockId
    length_bytes: int
    source: VolumeId
    target: VolumeId
    why_not: str = ""


class Rebalancing:
    """One rebalancing.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        urls: URLs of those that take part. One that does not answer, or has no limit, takes no part.
        copier: Makes the copies.
        threshold: Difference from the mean share of used space that is left as it is.
        progress: Called with the number of blocks that were moved.

    Raises:
        InvalidInputError: The threshold is not between 0 and 1.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        urls: Mapping[VolumeId, str],
        copier: BlockCopier,
        *,
        threshold: float = THRESHOLD,
        progress: Progress = no_progress,
    ) -> None:
        if not 0 < threshold < 1:
            raise InvalidInputError(f"threshold={threshold}: give a share of the space, from 0 to 1")
        self._journal = journal
        self._volumes = volumes
        self._machines = {volume: urlsplit(url).hostname for volume, url in urls.items()}
        self._copier = copier
        self._threshold = threshold
        self._progress = progress
        self._used: dict[VolumeId, int] = {}
        self._space: dict[VolumeId, int] = {}
        self._mean = 0.0

    def run(self, *, dry_run: bool = False) -> Iterator[Moved]:
        """Move blocks, and yield each move. The old replicas stay; they are left over.

        Args:
            dry_run: Only yield the moves.

        Raises:
            SafeModeError: The journal is in safe mode; nothing more is moved.
        """
        self._measure()
        done: set[BlockId] = set()
        for source in sorted(self._used, key=lambda volume: (-self._share(volume), volume)):
            for record in self._blocks(source):
                if not self._gives(source):
                    break
                if record.block in done:
                    continue  # its members have changed since
                target = self._target(record, source)
                if target is None:
                    continue
                moved = Moved(
                    block=record.block, length_bytes=record.length_bytes, source=source, target=target
                )
                why = "" if dry_run else self._move(record, source, target)
                if not why:
                    self._used[source] -= record.length_bytes
                    self._used[target] += record.length_bytes
                    done.add(record.block)
                    self._progress("rebalance", len(done), 0)
                yield msgspec.structs.replace(moved, why_not=why)

    def _measure(self) -> None:
        for volume in self._machines:
            try:
                usage = known_volume(self._volumes, volume).usage()
            except (NotAppliedError, OutcomeUnknownError):
                continue
            space = usage.used_bytes + usage.free_bytes
            if usage.free_bytes < UNLIMITED_BYTES and space:
                self._used[volume], self._space[volume] = usage.used_bytes, space
        self._mean = sum(self._used.values()) / max(sum(self._space.values()), 1)

    def _share(self, volume: VolumeId) -> float:
        return self._used[volume] / self._space[volume]

    def _is_low(self, volume: VolumeId) -> bool:
        return self._share(volume) < self._mean - self._threshold

    def _gives(self, source: VolumeId) -> bool:
        """Return whether blocks are to leave a volume: it is too full, or above the mean while one is low."""
        above = self._share(source) - self._mean
        return above > self._threshold or (above > 0 and any(map(self._is_low, self._used)))

    def _target(self, record: BlockRecord, source: VolumeId) -> VolumeId | None:
        """Return the emptiest volume that may have the block, if it stays emptier than the source is."""
        others = [volume for volume in record.members if volume != source]
        machines = {self._machines.get(volume) for volume in others}
        apart = self._machines[source] not in machines
        for volume in sorted(self._used, key=lambda one: (self._share(one), one)):
            if volume in record.members or volume in record.faults:
                continue
            if apart and self._machines[volume] in machines:
                continue  # two replicas would be on one machine
            after = self._used[volume] + record.length_bytes
            if after <= self._space[volume] and after / self._space[volume] < self._share(source):
                return volume
        return None

    def _blocks(self, source: VolumeId) -> Iterator[BlockRecord]:
        at = 0
        while True:
            with self._journal.reading() as reading:
                members = reading.where(Member, {"volume": source}, limit=PAGE, after=(at, source))
                rows = reading.find(Block, [(one.block,) for one in members])
                page = list(records(reading, [row for row in rows if row.file != DETACHED]))
            yield from (one for one in page if one.is_settled and source in one.members and one.length_bytes)
            if len(members) < PAGE:
                return
            at = members[-1].block

    def _move(self, record: BlockRecord, source: VolumeId, target: VolumeId) -> str:
        try:
            self._copier.copy(record, target, instead_of=source, most=len(record.members), is_move=True)
        except STOPS:
            raise
        except FAILS as error:
            return str(error)
        return ""
