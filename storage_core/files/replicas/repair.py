"""Repair of replicas: mark what is wrong, copy what has too few, and delete what is left over.

Each volume is compared with the journal once, without reading bytes but those that a check has found to be
damaged. What differs is journaled by compare-and-swap, in small entries, so that writers wait for none of
them long. A marked replica is not used any more, and stays where it is until a copy has taken its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.errors import ConflictError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault
from lockgate.storage_core.files.namespace.member_marks import MarkReplica
from lockgate.storage_core.files.namespace.rows import DamagedReplica
from lockgate.storage_core.files.replicas.comparison import (
    Comparison,
    Difference,
    Finding,
    Problem,
    unreachable,
)
from lockgate.storage_core.files.replicas.copies import Copies
from lockgate.storage_core.files.replicas.left_over import delete_replicas, discard_set_aside
from lockgate.storage_core.files.replicas.replica_check import lost_replicas, store_report, usable_volumes
from lockgate.storage_core.files.replicas.report_slices import HeadSlices
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.read.snapshot_read import Reads

Note = Callable[[str], None]
"""Receives a line for a log."""


class Repaired(msgspec.Struct, kw_only=True):
    """What a repair has done; a dry run would do it.

    Attributes:
        replicas: Replicas that were compared.
        read_bytes: Bytes that were read.
        marked: Members whose replicas are not used any more.
        released: Members with a fault whose replicas are good again.
        left_over: Replicas that no block names.
        deleted: Those of them that were deleted; others may be needed, or their volumes did not answer.
        copied: Copies; of a dry run, blocks with too few good replicas.
        set_aside: Damaged replicas that are set aside, and remains of creations that died.
        discarded: Those of them that were deleted.
        problems: What is wrong and was not repaired.
    """

    replicas: int = 0
    read_bytes: int = 0
    marked: int = 0
    released: int = 0
    left_over: int = 0
    deleted: int = 0
    copied: int = 0
    set_aside: int = 0
    discarded: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


@dataclass(kw_only=True)
class Repair:
    """One repair, in three steps; see `ReplicaUpkeep.repair` for the fields.

    Attributes:
        done: What it has done.
    """

    journal: Journal
    volumes: Mapping[VolumeId, Volume]
    dry_run: bool
    bytes_per_s: float | None
    note: Note
    progress: Progress
    slices: HeadSlices
    reads: Reads | None = None
    done: Repaired = field(default_factory=Repaired)
    _left_over: list[tuple[VolumeId, BlockId]] = field(default_factory=list)

    def mark(self) -> None:
        """Compare the volumes with the journal, and journal what differs."""
        for volume in usable_volumes(self.journal, self.volumes):
            try:
                self._mark_volume(volume)
            except (NotAppliedError, OutcomeUnknownError) as error:
                self._problem(unreachable(volume, error).finding)
        for finding in lost_replicas(self.journal):
            self._problem(finding)

    def delete_left_over(self, wait_s: float) -> None:
        """Delete the replicas that no block names; see `delete_replicas`."""
        self.done.left_over = len(self._left_over)
        if not self.dry_run:
            self.done.deleted = delete_replicas(self.journal, self.volumes, self._left_over, wait_s=wait_s)

    def copy(self, copies: Copies) -> None:
        """Copy the blocks that have too few good replicas, and delete what is set aside and not needed.

        Raises:
            SafeModeError: The journal is in safe mode; nothing more is copied or deleted.
        """
        for copy in copies.run(dry_run=self.dry_run):
            if copy.why_not:
                self.done.problems.append(f"block {copy.block} was not copied: {copy.why_not}")
            else:
                self.done.copied += 1
                self.note(f"block {copy.block} was copied to volume {copy.volume}")
        found = discard_set_aside(self.journal, self.volumes, dry_run=self.dry_run)
        self.done.set_aside, self.done.discarded = found

    def _mark_volume(self, volume: VolumeId) -> None:
        with self.journal.reading() as reading:
            damaged = {BlockId(row.block) for row in reading.where(DamagedReplica, {"volume": volume})}

        def reads(record: BlockRecord, _: VolumeId) -> bool:
            return record.block in damaged or record.faults.get(volume) is Fault.CORRUPT

        compared = Comparison(self.journal, self.volumes, reads, self.bytes_per_s, self.reads)
        only_ones: set[BlockId | None] = set()
        for _, page in compared.of_volume(volume):
            self.progress(f"compare {volume}", compared.replicas, 0)
            only_ones |= {one.finding.block for one in page if one.is_only_one}
            self._apply(volume, page)
        self.done.replicas += compared.replicas
        self.done.read_bytes += compared.read_bytes
        if not self.dry_run:
            store_report(self.journal, volume, only_ones=len(only_ones), mended=damaged - only_ones)

    def _apply(self, volume: VolumeId, page: Sequence[Difference]) -> None:
        for one in page:
            if one.is_to_be_named:
                self._problem(one.finding)
            elif one.finding.problem is Problem.LEFT_OVER and one.finding.block is not None:
                self._left_over.append((volume, one.finding.block))
            elif one.mark is not None and one.mark.fault is not None:
                self.note(str(one.finding))
        for marks in self.slices.of([one.mark for one in page if one.mark is not None]):
            self._write(marks)

    def _write(self, marks: Sequence[MarkReplica]) -> None:
        outcomes: Sequence[object] = marks
        if not self.dry_run:
            FAILPOINTS.hit("repair.mark.before")
            outcomes = self.journal.write([Mutation(op=mark) for mark in marks])
            FAILPOINTS.hit("repair.mark.after")
        for mark, outcome in zip(marks, outcomes, strict=True):
            if isinstance(outcome, Refused):
                if not isinstance(outcome.error, ConflictError):  # else it has changed: the next run sees it
                    raise outcome.error
            elif mark.fault is None:
                self.done.released += 1
            else:
                self.done.marked += 1

    def _problem(self, finding: Finding) -> None:
        self.note(str(finding))
        self.done.problems.append(str(finding))
