"""Entries about the members of sealed blocks: what a report or a verification found to differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from lockgate.storage_core.errors import ConflictError, SafeModeError
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, Member, RegisteredVolume, VolumeState
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix
from lockgate.storage_core.stamp import Stamp


class _MemberOp(Op, frozen=True):
    """A change of a sealed block's members: compare and swap on its generation stamp.

    Attributes:
        block: The block.
        volume: The volume whose membership changes.
        generation: Generation stamp of the block in the state that the caller has judged.
    """

    block: int
    volume: str
    generation: Stamp

    def touches(self) -> Iterable[Key]:
        return [(Block, (self.block,))]

    def spans(self) -> Iterable[Span]:
        return [prefix(Member, self.block)]

    def members(self, state: State) -> dict[str, Member]:
        """Return the members of the block by volume, if it is sealed at the stamp of the caller.

        Raises:
            ConflictError: It was removed, stamped or opened since, or is being written.
        """
        row = state.get(Block, self.block)
        if row is None or row.stamp != self.generation or row.pending is not None:
            raise ConflictError(
                f"block {self.block} has changed since stamp {self.generation}; nothing was changed"
            )
        if row.state is not ReplicaState.SEALED:
            raise ConflictError(f"block {self.block} is being written; nothing was changed")
        return {member.volume: member for member in state.where(Member, block=self.block)}


class MarkReplica(_MemberOp, frozen=True, tag="mark-replica"):
    """Keep readers and reseals from a member's replica, or let them use it again.

    Attributes:
        fault: What is wrong with the replica; None if nothing is any more.
    """

    fault: Fault | None

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Store the fault. The last member without one keeps none: its bytes may be the only ones."""
        members = self.members(state)
        member = members.get(self.volume)
        if member is None or member.fault is self.fault:
            raise ConflictError(
                f"block {self.block}: volume {self.volume} is no member, or is marked so already; "
                "nothing was changed"
            )
        others = [one for one in members.values() if one.fault is None and one is not member]
        if self.fault is not None and not others:
            raise ConflictError(
                f"block {self.block}: no other member than volume {self.volume} is without a fault; it was "
                "not marked"
            )
        state.put(msgspec.structs.replace(member, fault=self.fault))


class AddMember(_MemberOp, frozen=True, tag="add-member"):
    """Add the volume of a whole copy to a sealed block's members. The copy is sealed before this entry.

    Attributes:
        instead_of: Member that it replaces. One with a fault may be the same volume, which lost its own.
        is_move: Whether the replaced member has no fault; its replica is then left over.
        most: Number of members without a fault after it, at most, so that two processes do not both add one.
        until_s: The copy was begun so recently before this that no deletion of what is left over can have
            seen it in both of its passes.
    """

    instead_of: str | None
    most: int
    until_s: float
    is_move: bool = False

    def touches(self) -> Iterable[Key]:
        """Return the block and the volume."""
        return [*super().touches(), (RegisteredVolume, (self.volume,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the member."""
        if moment.is_safe_mode:
            raise SafeModeError("the journal is in safe mode: no member is added to a block in it")
        members = self.members(state)
        row = state.get(Block, self.block)
        volume = state.get(RegisteredVolume, self.volume)
        if row is None or row.file == DETACHED or volume is None or volume.state is not VolumeState.IN_USE:
            raise ConflictError(
                f"block {self.block} was cut off, or volume {self.volume} is not registered or in use; "
                "nothing was changed"
            )
        if moment.at_s > self.until_s:
            raise ConflictError(
                f"the copy of block {self.block} took too long; nothing was changed; try again"
            )
        replaced = None if self.instead_of is None else members.pop(self.instead_of, None)
        is_other = replaced is None or (replaced.fault is None) is not self.is_move
        if (self.instead_of is not None and is_other) or self.volume in members:
            kind = "without" if self.is_move else "with"
            raise ConflictError(
                f"block {self.block}: volume {self.instead_of} is no member {kind} a fault any more, or "
                f"{self.volume} is one already; nothing was changed"
            )
        if sum(one.fault is None for one in members.values()) >= self.most:
            raise ConflictError(f"block {self.block} has {self.most} members already; nothing was changed")
        if replaced is not None:
            state.delete(replaced)
        state.put(Member(block=self.block, volume=self.volume))


class DropMembers(Op, frozen=True, tag="drop-members"):
    """Drop a volume that is leaving, or lost, from the members of blocks that have another good one.

    A block that has none keeps a lost volume, marked as lost. A block that has changed since it was judged,
    or is being written, is left out.

    Attributes:
        volume: The volume.
        blocks: The blocks, each with its generation stamp in the state that the caller has judged.
    """

    RESULT: ClassVar = int

    volume: str
    blocks: tuple[tuple[int, Stamp], ...]

    def touches(self) -> Iterable[Key]:
        """Return the volume and the blocks."""
        blocks = ((Block, (block,)) for block, _ in self.blocks)
        return [(RegisteredVolume, (self.volume,)), *blocks]

    def spans(self) -> Iterable[Span]:
        """Return the members of the blocks."""
        return [prefix(Member, block) for block, _ in self.blocks]

    def fold(self, state: State, moment: Moment) -> int:  # noqa: ARG002 - of the base
        """Delete or mark the members; return the number of blocks that the volume was dropped from."""
        volume = state.get(RegisteredVolume, self.volume)
        if volume is None or volume.state is VolumeState.IN_USE:
            raise ConflictError(f"volume {self.volume} is in use; it was dropped from no block")
        dropped = 0
        for block, generation in self.blocks:
            row = state.get(Block, block)
            if row is None or row.stamp != generation or row.pending or row.state is not ReplicaState.SEALED:
                continue
            members = {member.volume: member for member in state.where(Member, block=block)}
            member = members.pop(self.volume, None)
            if member is None:
                continue
            if any(one.fault is None for one in members.values()):
                state.delete(member)
                dropped += 1
            elif volume.state is VolumeState.LOST:
                state.put(msgspec.structs.replace(member, fault=Fault.LOST))
        return dropped
