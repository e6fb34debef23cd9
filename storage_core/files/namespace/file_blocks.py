"""Entries that open and close a file for its one writer, and those about its blocks while it has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    ObjectNotFoundError,
    PathIsDirectoryError,
)
from lockgate.storage_core.files.blocks import BlockRecord, Opened
from lockgate.storage_core.files.namespace.mounts import NamingOp
from lockgate.storage_core.files.namespace.rows import (
    DETACHED,
    Block,
    File,
    FileState,
    InodeKind,
    Member,
    RegisteredVolume,
    id_of,
)
from lockgate.storage_core.files.namespace.tree import existing, made
from lockgate.storage_core.files.namespace.tree_paths import parse_path, resolve
from lockgate.storage_core.files.volumes.protocol import VolumeId, is_url
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import file_resource, inode_of
from lockgate.storage_core.journal.entries.lease_entries import FencedOp, Lease, TakeLease
from lockgate.storage_core.journal.entries.op import Moment
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix
from lockgate.storage_core.stamp import Stamp


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is committed of a block: compare and swap on its newest stamp.

    Attributes:
        generation: That stamp, which becomes the generation stamp of the block.
        members: The volumes that stay members; they have this length and stamp.
    """

    block: int
    generation: Stamp
    length_bytes: int
    members: tuple[str, ...]


class _LastOp(FencedOp, frozen=True, kw_only=True):
    """An entry behind the last block of the leased file, which is sealed, or sealed by the same entry."""

    last: Commit | None = None

    def touches(self) -> Iterable[Key]:
        blocks = () if self.last is None else [(Block, (self.last.block,))]
        return [*super().touches(), (File, (inode_of(self.resource),)), *blocks]

    def spans(self) -> Iterable[Span]:
        return () if self.last is None else [prefix(Member, self.last.block)]

    def sealed(self, state: State) -> tuple[File, Block | None]:
        """Return the file and its last block, None if it has none; refuse one that is not sealed."""
        file = file_of(state, inode_of(self.resource))
        if self.last is not None:
            return committed(state, file, self.last, ReplicaState.SEALED)
        for row in state.where(Block, file=file.inode, ordinal=file.blocks - 1):
            if row.is_settled:
                return file, row
            raise ConflictError(
                f"block {row.block} of file {file.inode} is not sealed: the file stays open, and gets no "
                "block; recover it: `lockgate files recover`"
            )
        return file, None


class AddBlock(_LastOp, frozen=True, tag="add-block"):
    """Add an empty block at the end of a file. The entry's stamp is the block's generation stamp.

    Attributes:
        members: Volumes that are to have replicas of it: registered ones, or URLs.
    """

    RESULT: ClassVar = BlockRecord

    members: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        return [*super().touches(), *((RegisteredVolume, (volume,)) for volume in self.members)]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> BlockRecord:  # noqa: ARG002 - of the base
        file, _ = self.sealed(state)
        file, record = added(state, moment, file, self.members)
        state.put(file)
        return record


class StampBlock(FencedOp, frozen=True, tag="stamp-block"):
    """Begin a reseal: the entry's stamp is the one that its commit must name.

    Attributes:
        target_bytes: Length to truncate the block to. It stays until a commit, and the blocks after this one
            are cut off in the same entry.
    """

    RESULT: ClassVar = BlockRecord

    block: int
    target_bytes: int | None = None

    def touches(self) -> Iterable[Key]:
        return [*super().touches(), (File, (inode_of(self.resource),)), (Block, (self.block,))]

    def spans(self) -> Iterable[Span]:
        return [prefix(Member, self.block)]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> BlockRecord:  # noqa: ARG002 - of the base
        file = file_of(state, inode_of(self.resource))
        row = block_of(state, file, self.block)
        target = row.target_bytes
        if target is None and self.target_bytes is not None:
            target = self.target_bytes
            if not 0 <= target <= row.length_bytes:
                raise InvalidInputError(
                    f"block {self.block} has {row.length_bytes} bytes; it cannot be cut to {target}"
                )
            file = self._cut_behind(state, file, row)
            state.put(file)
        row = stamped(state, moment, replace(row, target_bytes=target))
        return recorded(row, state.where(Member, block=self.block))

    def _cut_behind(self, state: State, file: File, row: Block) -> File:
        length = file.length_bytes
        for later in state.where(Block, file=file.inode) if row.ordinal + 1 < file.blocks else ():
            if later.ordinal > row.ordinal:
                length -= later.length_bytes
                state.put(replace(later, file=DETACHED))
        return replace(file, blocks=row.ordinal + 1, length_bytes=length)


class CommitBlock(_LastOp, frozen=True, kw_only=True, tag="commit-block"):
    """Commit a reseal or a first flush of the last block."""

    RESULT: ClassVar = BlockRecord

    last: Commit
    state: ReplicaState

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> BlockRecord:  # noqa: ARG002 - of the base
        file = file_of(state, inode_of(self.resource))
        file, row = committed(state, file, self.last, self.state)
        state.put(file)
        return recorded(row, state.where(Member, block=row.block))


def file_of(state: State, inode: int) -> File:
    """Return a file; raise `ObjectNotFoundError` if it was removed."""
    file = state.get(File, inode)
    if file is None:
        raise ObjectNotFoundError(f"file {inode} was deleted and removed; nothing was changed")
    return file


def block_of(state: State, file: File, block: int) -> Block:
    """Return a block of a file; raise `ObjectNotFoundError` if it was removed or cut off."""
    row = state.get(Block, block)
    if row is None or row.file != file.inode:
        raise ObjectNotFoundError(f"block {block} is not part of file {file.inode} any more")
    return row


def added(state: State, moment: Moment, file: File, members: tuple[str, ...]) -> tuple[File, BlockRecord]:
    """Insert an empty block at the end of a file; return the file, which the caller stores, and the block."""
    if not members or len(set(members)) < len(members):
        raise InvalidInputError(f"a block needs distinct members, not {members}; none was added")
    for volume in members:
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
    rows = [Member(block=row.block, volume=volume) for volume in members]
    for member in rows:
        state.put(member)
    return replace(file, blocks=file.blocks + 1), recorded(row, rows)


def stamped(state: State, moment: Moment, row: Block) -> Block:
    """Begin the reseal of a block: store the entry's stamp as the pending one."""
    row = replace(row, pending_epoch=moment.stamp.epoch, pending_sequence=moment.stamp.sequence)
    state.put(row)
    return row


def committed(state: State, file: File, commit: Commit, to: ReplicaState) -> tuple[File, Block]:
    """Commit the last block unless it has a newer stamp; return the file, which the caller stores, and it."""
    row = block_of(state, file, commit.block)
    if row.ordinal != file.blocks - 1:
        raise ConflictError(f"block {row.block} is not the last one of file {file.inode}; it stays open")
    newest = row.pending or row.stamp
    if newest != commit.generation:
        raise FencedError(
            f"block {row.block} was stamped {newest} since {commit.generation}: another reseal has begun; "
            "nothing was changed"
        )
    before = state.where(Member, block=row.block)
    known = {member.volume for member in before}
    if commit.length_bytes < 0 or not known.issuperset(commit.members):
        raise InvalidInputError(
            f"block {row.block}: {commit.length_bytes} bytes on {commit.members} cannot be committed; its "
            f"members are {sorted(known)}; nothing was changed"
        )
    for member in before:
        if member.volume not in commit.members:
            state.delete(member)
    file = replace(file, length_bytes=file.length_bytes + commit.length_bytes - row.length_bytes)
    row = replace(
        row,
        epoch=newest.epoch,
        sequence=newest.sequence,
        length_bytes=commit.length_bytes,
        state=to,
        pending_epoch=None,
        pending_sequence=None,
        target_bytes=None,
    )
    state.put(row)
    return file, row


def recorded(row: Block, members: Iterable[Member]) -> BlockRecord:
    """Return a block as a writer and a reseal use it, with its members by id."""
    ordered = sorted(members, key=lambda member: member.volume)
    return BlockRecord(
        block=BlockId(row.block),
        stamp=row.stamp,
        members=tuple(VolumeId(one.volume) for one in ordered if one.fault is None),
        length_bytes=row.length_bytes,
        state=row.state,
        pending=row.pending,
        target_bytes=row.target_bytes,
        faults={VolumeId(one.volume): one.fault for one in ordered if one.fault is not None},
    )


class OpenFile(NamingOp, frozen=True, tag="open-file"):
    """Create a file, or open a closed one, and take its lease in the same entry.

    The entry also adds the first block, or begins the reseal of the last one. Its stamp is that of the lease,
    of the block that it adds, and of the reseal.

    Attributes:
        mode: `create` refuses a path that exists, `append` one that does not.
        holder: Name of the new holder, which renews the lease.
        soft_s: Without a renewal for this long, the lease is late.
        hard_s: Without a renewal for this long, the file may be recovered.
        members: Volumes of the first block of a created file; empty: no block is added.
        block_bytes: A sealed last block that is shorter is opened to appends.
    """

    RESULT: ClassVar = Opened

    path: str
    mode: Literal["create", "append"]
    holder: str
    soft_s: float
    hard_s: float
    members: tuple[str, ...] = ()
    block_bytes: int = 0

    def touches(self) -> Iterable[Key]:
        return [*super().touches(), *((RegisteredVolume, (volume,)) for volume in self.members)]

    def fold(self, state: State, moment: Moment) -> Opened:
        names = parse_path(self.path)
        self.refuse_other_mounts(state)  # first: the directory may be in the satellite only
        if self.mode == "create":
            found = made(state, moment, names, InodeKind.FILE)
            now_s = moment.at_s
            file = File(inode=found.inode, state=FileState.OPEN, blocks=0, length_bytes=0, changed_s=now_s)
        else:
            found = existing(resolve(state.get, names), names)
            if found.kind is not InodeKind.FILE:
                raise PathIsDirectoryError(
                    f"{self.path} is a directory, not a file; nothing was changed", self.path
                )
            file = file_of(state, found.inode)
        take = TakeLease(
            resource=file_resource(found.inode),
            holder=self.holder,
            purpose="write",
            soft_s=self.soft_s,
            hard_s=self.hard_s,
            detail=self.path,
        )
        granted = take.fold(state, moment)
        opened = Opened(found.inode, granted.stamp)
        if self.members and self.mode == "create":
            file, last = added(state, moment, file, self.members)
            opened = Opened(found.inode, granted.stamp, last=last, is_added=True)
        elif file.blocks:
            opened = self._at_end(state, moment, file, opened)
        state.put(replace(file, state=FileState.OPEN, changed_s=moment.at_s))
        return opened

    def _at_end(self, state: State, moment: Moment, file: File, opened: Opened) -> Opened:
        (row,) = state.where(Block, file=file.inode, ordinal=file.blocks - 1)
        if not row.is_settled or row.length_bytes < self.block_bytes:
            row = stamped(state, moment, row)
        last = recorded(row, state.where(Member, block=row.block))
        before = file.length_bytes - row.length_bytes
        return replace(opened, before_bytes=before, last=last)


class CloseFile(_LastOp, frozen=True, tag="close-file"):
    """Close a file whose last block is sealed, and end its lease. A last block without members is removed."""

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> None:
        file, last = self.sealed(state)
        if last is not None and not last.length_bytes and not state.where(Member, block=last.block):
            state.delete(last)  # its replicas were never created
            file = replace(file, blocks=last.ordinal)
        state.put(replace(file, state=FileState.CLOSED, changed_s=moment.at_s))
        state.delete(lease)
