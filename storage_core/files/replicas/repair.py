"""Repair of replicas: differences marked, replicas that are left over deleted, blocks copied.

Each slice of marks is a transaction of limited time, so that writers wait for none of them long. A marked
replica is not used any more, and stays where it is until a copy has taken its place.

A volume that was away returns with replicas of blocks that were removed, or that it is no member of any more.
They are never served. They are judged twice, the second time later and on the primary, and deleted if both
passes saw the same bytes: a copy that another repair makes meanwhile, at the same stamp, stays. One with an
unexplained stamp is kept for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from lockgate.storage_core.errors import ConflictError, NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.members import ForgetVolume, MarkReplica
from lockgate.storage_core.files.namespace.rows import Member, VolumeState
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.replicas.comparison import (
    Difference,
    History,
    Problem,
    judge,
    members,
    read_block,
    read_history,
    stat_replica,
)
from lockgate.storage_core.files.replicas.copies import Copies
from lockgate.storage_core.files.replicas.replica_check import (
    HeadSlices,
    ReplicaCheck,
)
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.stamp import Stamp

Volumes = Mapping[VolumeId, Volume]


def delete_replicas(
    journal: Journal, volumes: Volumes, named: Sequence[tuple[VolumeId, BlockId]], *, wait_s: float
) -> int:
    """Judge replicas twice, delete those that are left over both times, and return their number.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        named: The replicas.
        wait_s: Time between the two passes.

    Raises:
        SafeModeError: The journal is in safe mode; nothing more is deleted.
    """
    first = {(volume, block): _left_over(journal, volumes, volume, block) for volume, block in named}
    journal.clock.sleep(wait_s if first else 0)
    deleted = 0
    for (volume, block), before in first.items():
        refuse_in_safe_mode(journal, "the deletion of replicas that are left over")
        now = _left_over(journal, volumes, volume, block)
        if before and now and (now.stamp, now.token) == (before.stamp, before.token):
            FAILPOINTS.hit("left-over.delete.before")
            with suppress(NotAppliedError, OutcomeUnknownError):  # the next run tries again
                deleted += known_volume(volumes, volume).delete(block, now.stamp, now.token)
            FAILPOINTS.hit("left-over.delete.after")
    return deleted


def _left_over(journal: Journal, volumes: Volumes, volume: VolumeId, block: BlockId) -> Replica | None:
    """Return a replica that is left over now, unless its block may need it: it may have the only bytes."""
    try:
        replica = stat_replica(known_volume(volumes, volume), block)
    except (NotAppliedError, OutcomeUnknownError):
        return None
    record, history = read_block(journal, block), read_history(journal)
    found = judge(record, volume, replica, history)
    if replica is None or replica.stamp == Stamp() or found is None or found[0] is not Problem.LEFT_OVER:
        return None
    return replica if record is None or _has_good_members(volumes, record, history) else None


def _has_good_members(volumes: Volumes, record: BlockRecord, history: History) -> bool:
    """Return whether a block has members without a fault, and all of them have good replicas."""
    for member in record.members:
        try:
            there = stat_replica(known_volume(volumes, member), record.block)
        except (NotAppliedError, OutcomeUnknownError):
            return False
        if there is None or judge(record, member, there, history):
            return False
    return bool(record.members)


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
        problems: What is wrong and was not repaired.
    """

    replicas: int = 0
    read_bytes: int = 0
    marked: int = 0
    released: int = 0
    left_over: int = 0
    deleted: int = 0
    copied: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


@dataclass
class Repair:
    """One repair: what it marks, copies and lets leave; see `ReplicaUpkeep.repair`.

    Attributes:
        done: What it has done.
        left_over: Replicas that no block names.
    """

    journal: Journal
    slices: HeadSlices
    note: Note
    dry_run: bool
    done: Repaired = field(default_factory=Repaired)
    left_over: list[tuple[VolumeId, BlockId]] = field(default_factory=list)

    def mark(self, check: ReplicaCheck) -> None:
        """Journal what differs."""
        for page in check.pages():
            self._apply(page)
        self.done.replicas, self.done.read_bytes = check.replicas, check.read_bytes
        self.done.left_over = len(self.left_over)

    def copy(self, copies: Copies) -> None:
        """Copy the blocks with too few good replicas; then blocks leave the volumes that are to be removed.

        Raises:
            SafeModeError: The journal is in safe mode; nothing more is copied.
        """
        for copy in copies.run(dry_run=self.dry_run):
            if copy.why_not:
                self.done.problems.append(f"block {copy.block} was not copied: {copy.why_not}")
            else:
                self.done.copied += 1
                self.note(f"block {copy.block} was copied to volume {copy.volume}")
        for volume, row in read_registered(self.journal).items():
            if row.state is not VolumeState.IN_USE:
                self._leave(volume, copies)

    def _leave(self, volume: VolumeId, copies: Copies) -> None:
        """Let the blocks that do without a volume leave it, and forget it once all have."""
        for page in members(self.journal, volume):
            marks = [
                MarkReplica(block=one.block, volume=volume, generation=one.stamp, fault=Fault.LOST)
                for one in page
                if copies.may_leave(one, volume)
            ]
            for some in self.slices.of(marks):
                self._write(some)
        with self.journal.reading() as reading:
            is_left = not reading.where(Member, {"volume": volume}, limit=1)
        if is_left and not self.dry_run:
            self.journal.apply(ForgetVolume(volume=volume))
            self.note(f"volume {volume} was removed: no block is on it any more")

    def _apply(self, page: Sequence[Difference]) -> None:
        for one in page:
            found = one.finding
            if one.is_to_be_named:
                self.note(str(found))
                self.done.problems.append(str(found))
            elif found.problem is Problem.LEFT_OVER and found.block is not None:
                self.left_over.append((found.volume, found.block))
            elif one.mark is not None and one.mark.fault is not None:
                self.note(str(found))
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
