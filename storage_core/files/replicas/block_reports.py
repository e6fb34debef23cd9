"""Block reports: each volume's replicas, compared with the journal in bounded batches.

A batch lists all replicas of a volume in a range of blocks, so what it lacks there may be lost; what is
outside the range is not judged, so a batch that is missing never means that something was deleted. Batches
may come twice, late and in any order: what differs is read once more, the volume before the journal, and
then journaled by compare-and-swap. What is confirmed is no entry. Blocks of deleted files are not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.queries import PAGE, records, undeleted
from lockgate.storage_core.files.namespace.rows import Block, Member, ReportedVolume
from lockgate.storage_core.files.replicas.replica_bytes import stat_replica
from lockgate.storage_core.files.replicas.replica_check import (
    History,
    judge,
    read_history,
    usable_volumes,
)
from lockgate.storage_core.files.replicas.replica_faults import FAULTS, write_faults
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance


class VolumeReport(msgspec.Struct, kw_only=True):
    """The report of one volume.

    Attributes:
        volume: The volume.
        replicas: Number of its replicas; of the last report, if it does not answer.
        length_bytes: Sum of their lengths.
        differences: Replicas whose fault was changed in the journal.
        only_ones: Replicas with a fault that were not marked: no other member is without one.
        reported_s: When its last whole report ended; None if there was none.
        why_not: Why it does not answer; empty if it does.
    """

    volume: VolumeId
    replicas: int = 0
    length_bytes: int = 0
    differences: int = 0
    only_ones: int = 0
    reported_s: float | None = None
    why_not: str = ""


class BlockReports:
    """Reports of volumes to the journal.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
    """

    def __init__(self, journal: Journal, volumes: Mapping[VolumeId, Volume]) -> None:
        self._journal = journal
        self._volumes = volumes

    def report(self, only: Collection[VolumeId] = ()) -> list[VolumeReport]:
        """Report volumes, by id. One that does not answer stops no other; what it has is not judged.

        Args:
            only: The volumes; by default all that the journal or this process knows, without lost ones.
        """
        return [self._of_volume(volume) for volume in only or usable_volumes(self._journal, self._volumes)]

    def batch(
        self, report: VolumeReport, after: BlockId | None, page: Sequence[Replica], *, is_last: bool
    ) -> None:
        """Compare a batch of a volume's replicas with the journal, and journal what differs.

        Args:
            report: The report that the batch is part of; it is added to.
            after: Last block before the batch; None: it begins with the first one.
            page: All replicas of the volume from there to the last one of the page, in order.
            is_last: Whether the volume has no more; then all later blocks are judged, too.
        """
        report.replicas += len(page)
        report.length_bytes += sum(one.length_bytes for one in page)
        listed = {one.block: one for one in page}
        history = read_history(self._journal)
        for found in self._members(report.volume, after, None if is_last else page[-1].block):
            differing = [
                record
                for record in found
                if _differs(record, report.volume, _fault(record, report.volume, listed, history))
            ]
            self._mark(report, differing)

    def _of_volume(self, volume: VolumeId) -> VolumeReport:
        report = VolumeReport(volume=volume)
        after: BlockId | None = None
        is_last = False
        try:
            while not is_last:
                page = known_volume(self._volumes, volume).replicas(after, PAGE)
                is_last = len(page) < PAGE
                self.batch(report, after, page, is_last=is_last)
                after = page[-1].block if page else after
        except (NotAppliedError, OutcomeUnknownError) as error:
            report.why_not = str(error)
        self._store(report)
        return report

    def _members(
        self, volume: VolumeId, after: BlockId | None, last: BlockId | None
    ) -> Iterator[list[BlockRecord]]:
        """Yield the blocks that the volume is a member of, in a range, a page at a time."""
        at = after or 0
        while True:
            with self._journal.reading() as reading:
                members = reading.where(Member, {"volume": volume}, limit=PAGE, after=(at, volume))
                within = [one.block for one in members if last is None or one.block <= last]
                rows = reading.find(Block, [(block,) for block in within])
                found = list(records(reading, sorted(rows, key=lambda row: row.block)))
            yield found
            if len(within) < PAGE:
                return
            at = within[-1]

    def _mark(self, report: VolumeReport, differing: Sequence[BlockRecord]) -> None:
        """Judge replicas again, as they are now, and journal what still differs."""
        there = known_volume(self._volumes, report.volume)
        listed = {
            record.block: replica
            for record in differing
            if (replica := stat_replica(there, record.block)) is not None
        }
        if not differing:
            return
        with self._journal.reading() as reading:
            rows = reading.find(Block, [(one.block,) for one in differing])
            # A removal deletes the replicas before the rows: what a deleted file lacks is no loss.
            found = list(records(reading, undeleted(reading, rows)))
        history = read_history(self._journal)
        faults = [(record, _fault(record, report.volume, listed, history)) for record in found]
        FAILPOINTS.hit("report.mark.before")
        marked = write_faults(
            self._journal,
            report.volume,
            [(record, fault) for record, fault in faults if _differs(record, report.volume, fault)],
        )
        FAILPOINTS.hit("report.mark.after")
        report.differences += marked.changed
        report.only_ones += marked.only_ones

    def _store(self, report: VolumeReport) -> None:
        """Store a whole report as soft state; complete one that has no answer from the last one."""
        if report.why_not:
            with self._journal.reading() as reading:
                last = reading.get(ReportedVolume, report.volume)
            if last is not None:
                report.replicas, report.length_bytes = last.replicas, last.length_bytes
                report.reported_s = last.reported_s
            return
        with step("report"), maintenance(self._journal, "soft") as (connection, head):
            rows = SqlRows(connection, self._journal.name)
            before = next(iter(rows.find(ReportedVolume, [(report.volume,)])), None)
            report.reported_s = head.now_s
            row = ReportedVolume(
                volume=report.volume,
                replicas=report.replicas,
                length_bytes=report.length_bytes,
                differences=report.differences,
                reported_s=head.now_s,
                only_ones=report.only_ones,
                accepted=0 if before is None else min(before.accepted, report.only_ones),
                since_s=head.now_s if before is None else before.since_s,
            )
            rows.write({(ReportedVolume, row.key): row})


def _fault(
    record: BlockRecord, volume: VolumeId, listed: Mapping[BlockId, Replica], history: History
) -> Fault | None:
    """Return the fault of a member's replica; without news of its bytes a corrupt one stays so."""
    before = record.faults.get(volume)
    found = judge(record, volume, listed.get(record.block), history)
    if before is Fault.CORRUPT or (found is not None and found[0] not in FAULTS):
        return before
    return None if found is None else FAULTS[found[0]]


def _differs(record: BlockRecord, volume: VolumeId, fault: Fault | None) -> bool:
    """Return whether the journal must be changed; a block that is being written is left to its reseal."""
    is_member = volume in record.members or volume in record.faults
    return record.is_settled and is_member and fault is not record.faults.get(volume)
