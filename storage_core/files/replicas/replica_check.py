"""Check of replicas: report of the volumes, stamps, and checksums within a bandwidth.

It writes soft rows only: each volume's last report, how far its bytes were read, and which replicas are
damaged, for the next repair. A check that was stopped goes on from there.

Slices keep the waits of writers short: of its entries, and of a volume. A virtual volume is a slice of a
volume's blocks. It has a row of its own among the volumes' last reports while the volume's report goes on,
so that a report that was stopped leaves out what it has confirmed.

Source: HDFS's very large block reports, in "The exabyte club".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.namespace.rows import DamagedReplica, Member, ReportedVolume, VolumeState
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import (
    Comparison,
    Difference,
    Finding,
    only_replicas,
    unreachable,
)
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.journal.read.snapshot_read import Reads

T = TypeVar("T")

FIRST: Final = 64
"""Items of the first slice."""

MOST: Final = 512
"""Items of the largest slice."""

_VIRTUAL: Final = re.compile(r"(.+)#\d+-\d+")

_END: Final = 2**63 - 1
"""The greatest block: the last virtual volume has all that follows, also what no block names."""


class HeadSlices:
    """Splits writes into slices that hold the journal's head for a limited time.

    After each one the head is left alone for as long as the slice took: a lock need not be fair, and a writer
    must not starve. The size of a slice follows the time that the ones before took.

    Args:
        clock: Measures a slice, and waits.
        limit_ms: How long a slice may take.
    """

    def __init__(self, clock: Clock, limit_ms: float) -> None:
        self.size = FIRST
        self._clock = clock
        self._limit_s = limit_ms / 1000

    def of(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield the items in slices; the caller writes each before it takes the next one."""
        begin = 0
        while begin < len(items):
            end = begin + self.size
            began_s = self._clock.monotonic_s()
            yield items[begin:end]
            took_s = self._clock.monotonic_s() - began_s
            if took_s > self._limit_s:
                self.size = max(1, self.size // 2)
            elif took_s < self._limit_s / 2:
                self.size = min(2 * self.size, MOST)
            self._clock.sleep(took_s)
            begin = end


class VirtualVolume(NamedTuple):
    """A slice of a volume's blocks.

    Attributes:
        row: Its last report.
        after: The last block of the slice before; 0 for the first slice.
        end: Its last block.
    """

    row: ReportedVolume
    after: BlockId
    end: BlockId


def virtual_volumes(journal: Journal, reads: Reads, volume: VolumeId, number: int) -> list[VirtualVolume]:
    """Return the virtual volumes of a report, in order: of one that was stopped, or new ones.

    Args:
        journal: The journal of the files.
        reads: Where the blocks are counted.
        volume: The volume.
        number: Number of slices; they have as many blocks each.
    """
    with journal.reading() as reading:
        rows = reading.where(ReportedVolume, {})
    found = ((row, _VIRTUAL.fullmatch(row.volume)) for row in rows)
    known = sorted(
        (_virtual(row) for row, match in found if match and match[1] == volume), key=lambda one: one.after
    )
    if known and [0, *(one.end for one in known)] == [*(one.after for one in known), _END]:
        return known
    made: list[VirtualVolume] = []
    if number > 1:
        ends = reads.read(lambda reading: reading.quantiles(Member, {"volume": volume}, "block", number))
        between = itertools.pairwise([0, *ends[:-1], _END])
        made = [_virtual(ReportedVolume(volume=f"{volume}#{after}-{end}")) for after, end in between]
    if known or made:  # what a check has left that ended beside another one is replaced
        with step("report"), maintenance(journal, "soft") as (connection, _):
            sql = SqlRows(connection, journal.name)
            sql.write({(ReportedVolume, one.row.key): None for one in known})
            sql.write({(ReportedVolume, one.row.key): one.row for one in made})
    return made or [VirtualVolume(ReportedVolume(volume=volume), BlockId(0), BlockId(_END))]


def _virtual(row: ReportedVolume) -> VirtualVolume:
    after, end = row.volume.rpartition("#")[2].split("-")
    return VirtualVolume(row, BlockId(int(after)), BlockId(int(end)))


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
        slices = virtual_volumes(self._journal, self._first, volume, self._slices)
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
