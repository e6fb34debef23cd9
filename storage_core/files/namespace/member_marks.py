"""Entries about the members of sealed blocks: what a report or a verification found to differ."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.rows import Block, Member
from lockgate.storage_core.files.volumes.protocol import ReplicaState
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
