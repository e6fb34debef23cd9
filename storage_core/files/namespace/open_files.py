"""Entries that open and close a file for its one writer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import msgspec

from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError, PathIsDirectoryError
from lockgate.storage_core.files.namespace.rows import Block, File, FileState, Inode, InodeKind, id_of
from lockgate.storage_core.files.namespace.tree import existing, refuse_existing
from lockgate.storage_core.files.namespace.tree_paths import directory, parse_path, resolve
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.ids import file_resource, inode_of
from lockgate.storage_core.journal.entries.lease_entries import FencedOp, Lease, TakeLease
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, State
from lockgate.storage_core.stamp import Stamp


class Opened(msgspec.Struct, frozen=True):
    """A file that was opened.

    Attributes:
        inode: The file.
        stamp: Stamp of its lease.
    """

    inode: int
    stamp: Stamp


class OpenFile(Op, frozen=True, tag="open-file"):
    """Create a file, or open a closed one, and take its lease in the same entry.

    Attributes:
        mode: `create` refuses a path that exists, `append` one that does not.
        holder: Name of the new holder, which renews the lease.
        soft_s: Without a renewal for this long, the lease is late.
        hard_s: Without a renewal for this long, the file may be recovered.
    """

    RESULT: ClassVar = Opened

    path: str
    mode: Literal["create", "append"]
    holder: str
    soft_s: float
    hard_s: float

    def fold(self, state: State, moment: Moment) -> Opened:
        """Insert the file, or mark it as open; take its lease."""
        names = parse_path(self.path)
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
        state.put(msgspec.structs.replace(file, state=FileState.OPEN, changed_s=moment.at_s))
        return Opened(found.inode, granted.stamp)


class CloseFile(FencedOp, frozen=True, tag="close-file"):
    """Close a file whose last block is sealed, and end its lease."""

    def touches(self) -> Iterable[Key]:
        """Return the lease and the file."""
        return [*super().touches(), (File, (inode_of(self.resource),))]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> None:
        """Mark the file as closed and delete its lease."""
        file = file_of(state, inode_of(self.resource))
        for last in state.where(Block, file=file.inode, ordinal=file.blocks - 1):
            if last.state is not ReplicaState.SEALED or last.pending is not None:
                raise ConflictError(
                    f"block {last.block} of file {file.inode} is not sealed; the file stays open; "
                    "recover it: `lockgate files recover`"
                )
        state.put(msgspec.structs.replace(file, state=FileState.CLOSED, changed_s=moment.at_s))
        state.delete(lease)


def file_of(state: State, inode: int) -> File:
    """Return a file.

    Raises:
        ObjectNotFoundError: It was removed.
    """
    file = state.get(File, inode)
    if file is None:
        raise ObjectNotFoundError(f"file {inode} was deleted and removed; nothing was changed")
    return file
