"""Check of replicas: report of the volumes, stamps, and checksums within a bandwidth.

It writes soft rows only: each volume's last report, how far its bytes were read, and which replicas are
damaged, for the next repair. A check that was stopped goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.namespace.rows import DamagedReplica, ReportedVolume, VolumeState
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import (
    Comparison,
    Difference,
    Finding,
    only_replicas,
    unreachable,
)
from lockgate.storage_core.files.replicas.report_slices import virtual_volumes as slices_of
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.journal.read.snapshot_read import Reads

CONFIRMED_S: Final = 86_400.0
"""How long a stopped check's virtual volumes need not be compared again."""


class ReplicaCheck(Comparison):
    """One check of all replicas, or of those of the files below a path.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        path: File or directory whose members are checked, and nothing is written; empty: all volumes.
        only: Volumes to check; by default all that the journal or this process knows, without lost ones.
        verify: Read the bytes of sealed replicas and compare their checksums.
        virtual_volumes: Slices of a volume; a check that was stopped leaves out those without a problem.
        bytes_per_s: Limit of what is read.
        progress: Called with the number of replicas of a volume that were looked at.
        reads: Where the journal is read first; see `Comparison`.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        path: str = "",
        *,
        only: Collection[VolumeId] = (),
        verify: bool = False,
        virtual_volumes: int = 1,
        bytes_per_s: float | None = None,
        progress: Progress = no_progress,
        reads: Reads | None = None,
    ) -> None:
        super().__init__(journal, volumes, self._is_read, bytes_per_s, reads)
        self._path = path
        self._only = only
        self._verify = verify
        self._slices = virtual_volumes
        self._progress = progress
        self._read_to: dict[VolumeId, int] = {}

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong: by volume and block, or by file with a path.

        Raises:
            PathNotFoundError: The path does not exist.
        """
        if self._path:
            for page in self.of_path(self._path):
                yield from (one.finding for one in page)
            return
        for volume in self._only or usable_volumes(self._journal, self._volumes):
            try:
                yield from self._of_volume(volume)
            except (NotAppliedError, OutcomeUnknownError) as error:
                yield unreachable(volume, error).finding
        if not self._only:
            yield from lost_replicas(self._journal)

    def _is_read(self, record: BlockRecord, volume: VolumeId) -> bool:
        return self._verify and record.block > self._read_to.get(volume, 0)

    def _of_volume(self, volume: VolumeId) -> Iterator[Finding]:
        with self._journal.reading() as reading:
            before = reading.get(ReportedVolume, volume)
            now_s = reading.now_s()
        self._read_to[volume] = 0 if before is None else before.read_to
        first, only_ones = self.replicas, 0
        slices = slices_of(self._journal, self._first, volume, self._slices)
        for row, after, end in slices:
            is_confirmed = row.reported_s is not None and now_s - row.reported_s < CONFIRMED_S
            if not is_confirmed or (self._verify and not row.read_to):
                differing = 0
                for last, page in self.of_volume(volume, after or None, end):
                    self._progress(f"check {volume}", self.replicas - first, 0)
                    only_ones += sum(one.is_only_one for one in page)
                    differing += len(page)
                    self._store_page(volume, last, page)
                    yield from (one.finding for one in page)
                if row.volume != volume and not differing:
                    store_report(self._journal, row.volume, only_ones=0, read_to=end * self._verify)
        ended = [row.volume for row, *_ in slices if row.volume != volume]
        read_to = 0 if self._verify else None
        store_report(self._journal, volume, only_ones=only_ones, read_to=read_to, ended=ended)

    def _store_page(self, volume: VolumeId, last: BlockId | None, page: Sequence[Difference]) -> None:
        damaged = [one.finding.block for one in page if one.was_read and one.finding.block is not None]
        read_to = last if self._verify and last is not None and last > self._read_to[volume] else None
        if damaged or read_to is not None:
            store_report(self._journal, volume, damaged, read_to=read_to)


def store_report(
    journal: Journal,
    volume: str,
    damaged: Collection[BlockId] = (),
    *,
    only_ones: int | None = None,
    read_to: int | None = None,
    mended: Collection[BlockId] = (),
    ended: Collection[str] = (),
) -> None:
    """Store what a check or a repair has found of a volume: soft state.

    Args:
        journal: The journal of the files.
        volume: The volume, or a virtual one.
        damaged: Blocks whose replicas are damaged.
        only_ones: See `ReportedVolume`; None if not all its replicas were compared.
        read_to: See `ReportedVolume`; None leaves it.
        mended: Blocks whose replicas were damaged, and are taken out of use or good again.
        ended: The virtual volumes of a report that has ended.
    """
    with step("report"), maintenance(journal, "soft") as (connection, head):
        rows = SqlRows(connection, journal.name)
        row = next(iter(rows.find(ReportedVolume, [(volume,)])), None) or ReportedVolume(volume=volume)
        if only_ones is not None:
            accepted = min(row.accepted, only_ones)
            row = replace(row, reported_s=head.now_s, only_ones=only_ones, accepted=accepted)
        if read_to is not None:
            row = replace(row, read_to=read_to)
        found = [DamagedReplica(volume=volume, block=block) for block in damaged]
        rows.write({(DamagedReplica, (volume, block)): None for block in mended})
        rows.write({(ReportedVolume, (virtual,)): None for virtual in ended})
        rows.write({(type(one), one.key): one for one in (row, *found)})


def lost_replicas(journal: Journal) -> Iterator[Finding]:
    """Yield the blocks that only lost volumes have."""
    for volume, row in read_registered(journal).items():
        if row.state is VolumeState.LOST:
            yield from only_replicas(journal, volume)


def usable_volumes(journal: Journal, volumes: Mapping[VolumeId, Volume]) -> list[VolumeId]:
    """Return the volumes that the journal or this process knows, without lost ones, by id."""
    rows = read_registered(journal)
    lost = {volume for volume, row in rows.items() if row.state is VolumeState.LOST}
    return sorted({*rows, *volumes} - lost)
