"""Entries about the members of sealed blocks, and about the volumes that may be members."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError, SafeModeError
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, Member, RegisteredVolume, VolumeState
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix
from lockgate.storage_core.stamp import Stamp


class _MemberOp(Op, frozen=True):
    """A change of a sealed block's members: compare and swap on its generation stamp.

    Attributes:
        generation: Generation stamp of the block in the state that the caller has judged.
    """

    block: int
    volume: str
    generation: Stamp

    def touches(self) -> Iterable[Key]:
        return [(Block, (self.block,)), (RegisteredVolume, (self.volume,))]

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

    The last member without a fault keeps none: its bytes may be the only ones.

    Attributes:
        fault: What is wrong with the replica; None if nothing is any more. With a fault, a volume that is
            leaving or lost is no member any more.
    """

    fault: Fault | None

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        members = self.members(state)
        member, volume = members.get(self.volume), state.get(RegisteredVolume, self.volume)
        leaves = self.fault is not None and volume is not None and volume.state is not VolumeState.IN_USE
        if member is None or (member.fault is self.fault and not leaves):
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
        if leaves:
            state.delete(member)
        else:
            state.put(replace(member, fault=self.fault))


class AddMember(_MemberOp, frozen=True, tag="add-member"):
    """Add the volume of a whole copy to a sealed block's members. The copy is sealed before this entry.

    Attributes:
        instead_of: Member with a fault that it replaces. It may be the same volume, which lost its own.
        most: Number of members without a fault after it, at most, so that two processes do not both add one.
        until_s: The copy was begun so recently before this that no deletion of what is left over can have
            seen it in both of its passes.
    """

    instead_of: str | None
    most: int
    until_s: float

    def fold(self, state: State, moment: Moment) -> None:
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
        is_other = replaced is None or replaced.fault is None
        if (self.instead_of is not None and is_other) or self.volume in members:
            raise ConflictError(
                f"block {self.block}: volume {self.instead_of} is no member with a fault any more, or "
                f"{self.volume} is one already; nothing was changed"
            )
        if sum(one.fault is None for one in members.values()) >= self.most:
            raise ConflictError(f"block {self.block} has {self.most} members already; nothing was changed")
        if replaced is not None:
            state.delete(replaced)
        state.put(Member(block=self.block, volume=self.volume))


class _VolumeOp(Op, frozen=True):
    """A change of one volume."""

    volume: str

    def touches(self) -> Iterable[Key]:
        return [(RegisteredVolume, (self.volume,))]


class RegisterVolume(_VolumeOp, frozen=True, tag="register-volume"):
    """Add a volume, or change where it is reached."""

    url: str

    def fold(self, state: State, moment: Moment) -> None:
        known = state.get(RegisteredVolume, self.volume)
        if known is None:
            state.put(RegisteredVolume(volume=self.volume, url=self.url, added_s=moment.at_s))
        else:
            state.put(replace(known, url=self.url, state=VolumeState.IN_USE))


class LeaveVolume(_VolumeOp, frozen=True, tag="leave-volume"):
    """Take a volume out of use: it gets no new blocks and no copies, and its blocks leave it.

    Attributes:
        is_lost: Whether its replicas are gone, and nothing waits for them.
    """

    is_lost: bool

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        known = state.get(RegisteredVolume, self.volume)
        if known is None:
            raise ObjectNotFoundError(
                f"volume {self.volume} is not registered; nothing was changed; see `lockgate volumes list`"
            )
        if known.state is not VolumeState.LOST:
            state.put(replace(known, state=VolumeState.LOST if self.is_lost else VolumeState.LEAVING))


class ForgetVolume(_VolumeOp, frozen=True, tag="forget-volume"):
    """Remove a volume that is a member of no block."""

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        known = state.get(RegisteredVolume, self.volume)
        if state.has(Member, volume=self.volume):
            raise ConflictError(f"volume {self.volume} is a member of blocks; it stays registered")
        if known is not None:
            state.delete(known)
