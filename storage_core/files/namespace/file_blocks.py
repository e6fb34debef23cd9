"""Entries about the blocks of an open file, written by the holder of its lease only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import msgspec

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    ObjectNotFoundError,
)
from lockgate.storage_core.files.blocks import BlockRecord, Fault
from lockgate.storage_core.files.namespace.open_files import file_of
from lockgate.storage_core.files.namespace.rows import (
    DETACHED,
    Block,
    File,
    Member,
    RegisteredVolume,
    id_of,
)
from lockgate.storage_core.files.volumes.protocol import VolumeId, is_url
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import inode_of
from lockgate.storage_core.journal.entries.lease_entries import FencedOp, Lease
from lockgate.storage_core.journal.entries.op import Moment
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix
from lockgate.storage_core.stamp import Stamp


class AddBlock(FencedOp, frozen=True, tag="add-block"):
    """Add an empty block at the end of a file. The entry's stamp is the block's generation stamp.

    Attributes:
        members: Volumes that are to have replicas of it: registered ones, or URLs.
    """

    RESULT: ClassVar = BlockRecord

    members: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        """Return the lease, the file and the volumes."""
        return [
            *super().touches(),
            (File, (inode_of(self.resource),)),
            *((RegisteredVolume, (volume,)) for volume in self.members),
        ]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> BlockRecord:  # noqa: ARG002 - of the base
        """Insert the block if the one before it is sealed."""
        file = file_of(state, inode_of(self.resource))
        for last in state.where(Block, file=file.inode, ordinal=file.blocks - 1):
            if last.state is not ReplicaState.SEALED or last.pending is not None:
                raise ConflictError(f"block {last.block} is not sealed; no block was added after it")
        if not self.members or len(set(self.members)) < len(self.members):
            raise InvalidInputError(f"a block needs distinct members, not {self.members}; none was added")
        for volume in self.members:
            if not is_url(volume) and state.get(RegisteredVolume, volume) is None:
                raise ObjectNotFoundError(f"volume {volume} is not registered; no block was added")
        row = Block(
            block=id_of(moment.stamp),
            file=file.inode,
            ordinal=file.blocks,
            epoch=moment.stamp.epoch,
            sequence=moment.stamp.sequence,
            length_bytes=0,
            state=ReplicaState.WRITING,
        )
        state.put(row)
        for volume in self.members:
            state.put(Member(block=row.block, volume=volume))
        state.put(msgspec.structs.replace(file, blocks=file.blocks + 1))
        return record_of(row, self.members)


class _BlockOp(FencedOp, frozen=True):
    """A mutation of one block of the leased file."""

    block: int

    def touches(self) -> Iterable[Key]:
        return [*super().touches(), (File, (inode_of(self.resource),)), (Block, (self.block,))]

    def spans(self) -> Iterable[Span]:
        return [prefix(Member, self.block)]

    def find(self, state: State) -> tuple[File, Block]:
        """Return the file and its block."""
        file, row = file_of(state, inode_of(self.resource)), state.get(Block, self.block)
        if row is None or row.file != file.inode:
            raise ObjectNotFoundError(f"block {self.block} is not part of file {file.inode} any more")
        return file, row


class StampBlock(_BlockOp, frozen=True, tag="stamp-block"):
    """Begin a reseal: the entry's stamp is the one that its commit must name.

    Attributes:
        target_bytes: Length to truncate the block to. It stays until a commit, and the blocks after this one
            are cut off in the same entry.
    """

    RESULT: ClassVar = BlockRecord

    target_bytes: int | None = None

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> BlockRecord:  # noqa: ARG002 - of the base
        """Note the stamp and the target; detach the blocks behind a target."""
        file, row = self.find(state)
        target = row.target_bytes
        if target is None and self.target_bytes is not None:
            target = self.target_bytes
            if not 0 <= target <= row.length_bytes:
                raise InvalidInputError(
                    f"block {self.block} has {row.length_bytes} bytes; it cannot be cut to {target}"
                )
            file = self._cut_behind(state, file, row)
            state.put(file)
        row = msgspec.structs.replace(
            row,
            pending_epoch=moment.stamp.epoch,
            pending_sequence=moment.stamp.sequence,
            target_bytes=target,
        )
        state.put(row)
        return recorded(row, state.where(Member, block=self.block))

    def _cut_behind(self, state: State, file: File, row: Block) -> File:
        length = file.length_bytes
        for later in state.where(Block, file=file.inode) if row.ordinal + 1 < file.blocks else ():
            if later.ordinal > row.ordinal:
                length -= later.length_bytes
                state.put(msgspec.structs.replace(later, file=DETACHED))
        return msgspec.structs.replace(file, blocks=row.ordinal + 1, length_bytes=length)


class CommitBlock(_BlockOp, frozen=True, tag="commit-block"):
    """Commit a reseal or a close: compare and swap on the newest stamp of the block.

    Attributes:
        generation: The newest stamp of the block, which becomes its generation stamp.
        members: The volumes that stay members; they have this length and stamp.
    """

    RESULT: ClassVar = BlockRecord

    generation: Stamp
    length_bytes: int
    members: tuple[str, ...]
    state: Literal["writing", "sealed"]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> BlockRecord:  # noqa: ARG002 - of the base
        """Store the length, stamp and members."""
        file, row = self.find(state)
        newest = row.pending or row.stamp
        if newest != self.generation:
            raise FencedError(
                f"block {self.block} was stamped {newest} since {self.generation}: another reseal has begun; "
                "nothing was changed"
            )
        before = [member.volume for member in state.where(Member, block=self.block)]
        if self.length_bytes < 0 or not set(self.members) <= set(before):
            raise InvalidInputError(
                f"block {self.block}: {self.length_bytes} bytes on {self.members} cannot be committed; its "
                f"members are {before}; nothing was changed"
            )
        for volume in before:
            if volume not in self.members:
                state.delete(Member(block=self.block, volume=volume))
        length = file.length_bytes + self.length_bytes - row.length_bytes
        state.put(msgspec.structs.replace(file, length_bytes=length))
        row = msgspec.structs.replace(
            row,
            epoch=newest.epoch,
            sequence=newest.sequence,
            length_bytes=self.length_bytes,
            state=ReplicaState(self.state),
            pending_epoch=None,
            pending_sequence=None,
            target_bytes=None,
        )
        state.put(row)
        return record_of(row, self.members)


def recorded(row: Block, members: Iterable[Member]) -> BlockRecord:
    """Return a block with its members, by id."""
    ordered = sorted(members, key=lambda member: member.volume)
    faults = {VolumeId(one.volume): one.fault for one in ordered if one.fault is not None}
    return record_of(row, [one.volume for one in ordered if one.fault is None], faults)


def record_of(
    row: Block, members: Iterable[str], faults: Mapping[VolumeId, Fault] | None = None
) -> BlockRecord:
    """Return a block as a writer and a reseal use it."""
    return BlockRecord(
        block=BlockId(row.block),
        stamp=row.stamp,
        members=tuple(map(VolumeId, members)),
        length_bytes=row.length_bytes,
        state=row.state,
        pending=row.pending,
        target_bytes=row.target_bytes,
        faults=faults or {},
    )
