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
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.queries import (
    PAGE,
    current_records,
    listing,
    paths_of,
    status,
    walk,
)
from lockgate.storage_core.files.namespace.rows import (
    Block,
    DamagedReplica,
    Member,
    ReportedVolume,
    VolumeState,
)
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import (
    FAULTS,
    Difference,
    Finding,
    check_limit,
    damage,
    difference,
    judge,
    members,
    only_replicas,
    read_history,
    stat_replica,
    unreachable,
)
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
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
    """A slice of a volume's blocks, after one and up to another, and its last report."""

    row: ReportedVolume
    after: BlockId
    end: BlockId


def virtual_volumes(journal: Journal, reads: Reads, volume: VolumeId, number: int) -> list[VirtualVolume]:
    """Return the virtual volumes of a report, in order: of one that was stopped, or so many equal ones."""
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
    return made or [whole_volume(volume)]


def whole_volume(volume: VolumeId) -> VirtualVolume:
    """Return a volume as its only slice."""
    return VirtualVolume(ReportedVolume(volume=volume), BlockId(0), BlockId(_END))


def _virtual(row: ReportedVolume) -> VirtualVolume:
    after, end = row.volume.rpartition("#")[2].split("-")
    return VirtualVolume(row, BlockId(int(after)), BlockId(int(end)))


CONFIRMED_S: Final = 86_400.0
"""How long a stopped check's virtual volumes need not be compared again."""


@dataclass
class ReplicaCheck:
    """One check of all replicas, or of those of the files below a path.

    A page covers a range of blocks: the volume's replicas are listed, then its members are read, by short
    reads of the journal. What differs is read once more, the volume before the journal, so a block that is
    changed or removed meanwhile is left out. So are members of deleted files: a removal deletes replicas
    before rows.

    Attributes:
        replicas: Number of replicas that were looked at.

    Args:
        path: File or directory whose members are checked, and nothing is written; empty: all volumes.
        only: Volumes to check; by default all that the journal or this process knows, without lost ones.
        verify: Read the bytes of sealed replicas and compare their checksums; None: of those that were found
            to be damaged, whole volumes at once, for a repair that takes what is damaged out of use.
        virtual_volumes: Slices of a volume; a check that was stopped leaves out those without a problem.
        bytes_per_s: Limit of what is read.
        progress: Called with the number of replicas of a volume that were looked at.
        reads: Where the journal is read first, such as at an observer; by default at its primary, where what
            differs is always judged.
        stores: Whether the reports are stored.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    journal: Journal
    volumes: Mapping[VolumeId, Volume]
    path: str = ""
    _: KW_ONLY
    only: Collection[VolumeId] = ()
    verify: bool | None = False
    virtual_volumes: int = 1
    bytes_per_s: float | None = None
    progress: Progress = no_progress
    reads: Reads | None = None
    stores: bool = True
    replicas: int = field(default=0, init=False)
    read_bytes: int = field(default=0, init=False)
    _read_to: dict[VolumeId, int] = field(default_factory=dict, init=False)
    _damaged: set[BlockId] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        check_limit(self.bytes_per_s)
        self._first: Reads = self.reads or self.journal

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong: by volume and block, or by file with a path.

        Raises:
            PathNotFoundError: The path does not exist.
        """
        return (one.finding for page in self.pages() for one in page)

    def pages(self) -> Iterator[list[Difference]]:
        """Yield what differs, a page at a time; raises as `findings`."""
        if self.path:
            yield from self._of_path(self.path)
            return
        known = read_registered(self.journal)
        lost = [volume for volume, row in known.items() if row.state is VolumeState.LOST]
        for volume in self.only or sorted({*known, *self.volumes} - set(lost)):
            try:
                yield from self._whole(volume)
            except (NotAppliedError, OutcomeUnknownError) as error:
                yield [unreachable(volume, error)]
        for volume in () if self.only else lost:
            yield from ([Difference(one)] for one in only_replicas(self.journal, volume))

    def _is_read(self, record: BlockRecord, volume: VolumeId) -> bool:
        if self.verify is None:
            return record.block in self._damaged or record.faults.get(volume) is Fault.CORRUPT
        return self.verify and record.block > self._read_to.get(volume, 0)

    def _whole(self, volume: VolumeId) -> Iterator[list[Difference]]:
        with self.journal.reading() as reading:
            before = reading.get(ReportedVolume, volume)
            rows = reading.where(DamagedReplica, {"volume": volume}) if self.verify is None else ()
            now_s = reading.now_s()
        self._read_to[volume] = 0 if before is None else before.read_to
        self._damaged = {BlockId(row.block) for row in rows}
        first, only_ones = self.replicas, set[BlockId | None]()
        slices = [whole_volume(volume)]
        if self.verify is not None:
            slices = virtual_volumes(self.journal, self._first, volume, self.virtual_volumes)
        for row, after, end in slices:
            is_confirmed = row.reported_s is not None and now_s - row.reported_s < CONFIRMED_S
            if not is_confirmed or (self.verify and not row.read_to):
                differing = 0
                for last, page in self.of_volume(volume, after or None, end):
                    self.progress(f"check {volume}", self.replicas - first, 0)
                    only_ones |= {one.finding.block for one in page if one.is_only_one}
                    differing += len(page)
                    if self.verify is not None:
                        self._store_page(volume, last, page)
                    yield page
                if row.volume != volume and not differing:
                    store_report(self.journal, row.volume, only_ones=0, read_to=end * bool(self.verify))
        if self.stores:
            store_report(
                self.journal,
                volume,
                only_ones=len(only_ones),
                read_to=0 if self.verify else None,
                mended=self._damaged - only_ones,
                ended=[row.volume for row, *_ in slices if row.volume != volume],
            )

    def _store_page(self, volume: VolumeId, last: BlockId | None, page: Sequence[Difference]) -> None:
        damaged = [one.finding.block for one in page if one.was_read and one.finding.block is not None]
        read_to = last if self.verify and last is not None and last > self._read_to[volume] else None
        if damaged or read_to is not None:
            store_report(self.journal, volume, damaged, read_to=read_to)

    def of_volume(
        self, volume: VolumeId, after: BlockId | None = None, to: BlockId | None = None
    ) -> Iterator[tuple[BlockId | None, list[Difference]]]:
        """Yield the last block of each page between two, None for the last page, and what differs in it."""
        there = known_volume(self.volumes, volume)
        while True:
            page = there.replicas(after, PAGE)
            last = page[-1].block if len(page) == PAGE and (to is None or page[-1].block < to) else None
            left = {one.block: one for one in page if to is None or one.block <= to}
            for found in members(self._first, volume, after, last or to):
                pairs = [(record, left.pop(record.block, None)) for record in found]
                yield found[-1].block, self._differences(volume, pairs)
            yield last, self._differences(volume, [(None, replica) for replica in left.values()])
            if last is None:
                return
            after = last

    def _of_path(self, path: str) -> Iterator[list[Difference]]:
        """Yield what differs in the members of the files below a path; a volume without an answer is one."""
        found = self.journal.read(lambda reading: status(reading, path))
        below = walk(lambda at, after: self.journal.read(lambda reading: listing(reading, at, after)), path)
        away: set[VolumeId] = set()
        for file in (one.status for one in below) if found.is_directory else (found,):
            if file.is_directory:
                continue
            with self.journal.reading() as reading:
                blocks = tuple(current_records(reading, reading.where(Block, {"file": file.inode})))
            for record in blocks:
                for volume in (*record.members, *record.faults):
                    if volume in away:
                        continue
                    try:
                        replica = stat_replica(known_volume(self.volumes, volume), record.block)
                        yield self._differences(volume, [(record, replica)])
                    except (NotAppliedError, OutcomeUnknownError) as error:
                        away.add(volume)
                        yield [unreachable(volume, error)]

    def _differences(
        self, volume: VolumeId, pairs: Sequence[tuple[BlockRecord | None, Replica | None]]
    ) -> list[Difference]:
        there = known_volume(self.volumes, volume)
        history = read_history(self._first)
        read: dict[BlockId, tuple[BlockRecord, str]] = {}
        differing: list[BlockId] = []
        for record, replica in pairs:
            self.replicas += replica is not None
            is_wrong = judge(record, volume, replica, history) is not None
            if record is not None and not is_wrong:
                why = ""
                if record.is_settled and self._is_read(record, volume):
                    why = damage(there, record, self._count)
                    read[record.block] = record, why
                is_wrong = bool(why) or volume in record.faults
            if is_wrong:
                differing.append((record or replica).block)  # type: ignore[union-attr] # one of them is there
        return self._again(volume, there, differing, read) if differing else []

    def _again(
        self,
        volume: VolumeId,
        there: Volume,
        blocks: Sequence[BlockId],
        read: Mapping[BlockId, tuple[BlockRecord, str]],
    ) -> list[Difference]:
        """Read blocks and their replicas once more, and return what is still wrong."""
        replicas = {block: stat_replica(there, block) for block in blocks}
        with self.journal.reading() as reading:
            rows = {row.block: row for row in reading.find(Block, [(block,) for block in blocks])}
            paths = paths_of(reading, {row.file for row in rows.values()})
            now = {one.block: one for one in current_records(reading, list(rows.values()))}
        history = read_history(self.journal)
        differences: list[Difference] = []
        for block in blocks:
            record = now.get(block)
            before, why = read.get(block, (None, None))
            if before is not None and before != record:
                continue  # it has changed meanwhile
            found = judge(record, volume, replicas[block], history)
            if found is not None and record is not None:
                # Its writer may go on: what the record says is there after the journal was read.
                found = judge(record, volume, stat_replica(there, block), read_history(self.journal))
            one = difference(record, volume, block, found, why)
            if one is None or (
                record is not None and one.finding.problem in FAULTS and rows[block].file not in paths
            ):
                continue  # nothing is wrong, or its file was deleted
            path = "" if record is None else paths.get(rows[block].file, "")
            differences.append(one._replace(finding=msgspec.structs.replace(one.finding, path=path)))
        return differences

    def _count(self, size: int) -> None:
        self.read_bytes += size
        if self.bytes_per_s is not None:
            self.journal.clock.sleep(size / self.bytes_per_s)


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
    """Store what a check or a repair has found of a volume, or a virtual one: soft state.

    Args:
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
