"""Entries that open and close a file for its one writer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import msgspec

from lockgate.storage_core.errors import ConflictError, PathIsDirectoryError
from lockgate.storage_core.files.blocks import Opened
from lockgate.storage_core.files.namespace.file_blocks import (
    Commit,
    added,
    block_of,
    committed,
    file_of,
    recorded,
    stamped,
)
from lockgate.storage_core.files.namespace.mounts import TABLE_KEY, refuse_other_mounts
from lockgate.storage_core.files.namespace.rows import (
    Block,
    File,
    FileState,
    Inode,
    InodeKind,
    Member,
    RegisteredVolume,
    id_of,
)
from lockgate.storage_core.files.namespace.tree import existing, refuse_existing
from lockgate.storage_core.files.namespace.tree_paths import directory, parse_path, resolve
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.ids import file_resource, inode_of
from lockgate.storage_core.journal.entries.lease_entries import FencedOp, Lease, TakeLease
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix


class OpenFile(Op, frozen=True, tag="open-file"):
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
        mounts: Version of the mount table that the writer has read.
    """

    RESULT: ClassVar = Opened

    path: str
    mode: Literal["create", "append"]
    holder: str
    soft_s: float
    hard_s: float
    members: tuple[str, ...] = ()
    block_bytes: int = 0
    mounts: int = 0

    def touches(self) -> Iterable[Key]:
        """Return the volumes and the mount table."""
        return [TABLE_KEY, *((RegisteredVolume, (volume,)) for volume in self.members)]

    def fold(self, state: State, moment: Moment) -> Opened:
        """Insert the file, or mark it as open; take its lease."""
        names = parse_path(self.path)
        refuse_other_mounts(state, self.mounts)  # first: the directory may be in the satellite only
        found = resolve(state, names)
        if self.mode == "create":
            refuse_existing(found, names)
            found = Inode(
                parent=directory(state, names[:-1]),
                name=names[-1],
                inode=id_of(moment.stamp),
                kind=InodeKind.FILE,
                made_s=moment.at_s,
            )
            state.put(found)
            file = File(
                inode=found.inode, state=FileState.OPEN, blocks=0, length_bytes=0, changed_s=moment.at_s
            )
        else:
            found = existing(found, names)
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
        state.put(msgspec.structs.replace(file, state=FileState.OPEN, changed_s=moment.at_s))
        return opened

    def _at_end(self, state: State, moment: Moment, file: File, opened: Opened) -> Opened:
        (row,) = state.where(Block, file=file.inode, ordinal=file.blocks - 1)
        if not row.is_settled or row.length_bytes < self.block_bytes:
            row = stamped(state, moment, row)
        last = recorded(row, state.where(Member, block=row.block))
        before = file.length_bytes - row.length_bytes
        return msgspec.structs.replace(opened, before_bytes=before, last=last)


class CloseFile(FencedOp, frozen=True, tag="close-file"):
    """Close a file whose last block is sealed, and end its lease.

    Attributes:
        last: The last block, if it is sealed by the same entry. One without members is removed.
    """

    last: Commit | None = None

    def touches(self) -> Iterable[Key]:
        """Return the lease, the file and the block."""
        block = () if self.last is None else [(Block, (self.last.block,))]
        return [*super().touches(), (File, (inode_of(self.resource),)), *block]

    def spans(self) -> Iterable[Span]:
        """Return the members of the block."""
        return () if self.last is None else [prefix(Member, self.last.block)]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> None:
        """Seal the block, mark the file as closed and delete its lease."""
        file = file_of(state, inode_of(self.resource))
        if self.last is not None:
            row = block_of(state, file, self.last.block)
            file, row = committed(state, file, row, self.last, ReplicaState.SEALED)
            file = _without_empty(state, file, row)
        elif file.blocks:
            (row,) = state.where(Block, file=file.inode, ordinal=file.blocks - 1)
            if not row.is_settled:
                raise ConflictError(
                    f"block {row.block} of file {file.inode} is not sealed; the file stays open; "
                    "recover it: `lockgate files recover`"
                )
            file = _without_empty(state, file, row)
        state.put(msgspec.structs.replace(file, state=FileState.CLOSED, changed_s=moment.at_s))
        state.delete(lease)


def _without_empty(state: State, file: File, last: Block) -> File:
    """Remove the last block if it has no members, because its replicas were never created."""
    if last.ordinal != file.blocks - 1:
        raise ConflictError(f"block {last.block} is not the last one of file {file.inode}; it stays open")
    if last.length_bytes or state.where(Member, block=last.block):
        return file
    state.delete(last)
    return msgspec.structs.replace(file, blocks=last.ordinal)
