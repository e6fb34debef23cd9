"""Slices of a report, which keep the waits of writers short: of its entries, and of a volume.

A virtual volume is a slice of a volume's blocks. It has a row of its own among the volumes' last reports
while the volume's report goes on, so that a report that was stopped leaves out what it has confirmed.

Source: HDFS's very large block reports, in "The exabyte club".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.namespace.rows import Member, ReportedVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
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
