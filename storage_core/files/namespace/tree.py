"""Entries that change names: directories made, names moved, deleted and, each a bounded number, removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from lockgate.storage_core.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    PathConflictError,
    PathExistsError,
    PathNotFoundError,
    SafeModeError,
)
from lockgate.storage_core.files.namespace.mounts import NamingOp
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, File, Inode, InodeKind, Member, id_of
from lockgate.storage_core.files.namespace.tree_paths import directory, parse_path, resolve, shown
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal.entries.lease_entries import Lease, Standing
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix


class MakeDirectory(NamingOp, frozen=True, tag="make-directory"):
    """Make a directory in an existing one."""

    path: str

    def fold(self, state: State, moment: Moment) -> None:
        names = parse_path(self.path)
        self.refuse_other_mounts(state)
        made(state, moment, names, InodeKind.DIRECTORY)


def made(state: State, moment: Moment, names: tuple[str, ...], kind: InodeKind) -> Inode:
    """Insert a name that nothing has, in a directory that exists."""
    refuse_existing(resolve(state.get, names), names)
    inode, parent = id_of(moment.stamp), directory(state.get, names[:-1])
    row = Inode(parent=parent, name=names[-1], inode=inode, kind=kind, made_s=moment.at_s)
    state.put(row)
    return row


class Rename(NamingOp, frozen=True, tag="rename"):
    """Move a file or a directory. An open file keeps its lease, which names its inode.

    Attributes:
        replaces: Whether a file takes the place of another one, which is deleted.
    """

    RESULT: ClassVar = int | None

    path: str
    target: str
    replaces: bool = False

    def fold(self, state: State, moment: Moment) -> int | None:  # noqa: ARG002 - of the base
        """Replace one row, and detach the one that it replaces; return the inode of that file."""
        names, target = parse_path(self.path), parse_path(self.target)
        self.refuse_other_mounts(state)
        found = existing(resolve(state.get, names), names)
        if target[: len(names)] == names:
            raise PathConflictError(
                f"{self.path} cannot be moved to {self.target}, which is itself or inside it; "
                "nothing was changed",
                self.path,
            )
        old = resolve(state.get, target)
        if old is not None and self.replaces and {old.kind, found.kind} == {InodeKind.FILE}:
            detach(state, old)
        else:
            refuse_existing(old, target)
        state.delete(found)
        state.put(msgspec.structs.replace(found, parent=directory(state.get, target[:-1]), name=target[-1]))
        return None if old is None else old.inode


class Delete(NamingOp, frozen=True, kw_only=True, tag="delete"):
    """Detach a file or a directory from the tree; its blocks are removed later, in batches.

    The lease of a file ends, so that its writer is fenced at the journal.

    Attributes:
        recursive: Whether a directory may have names in it.
        inode: The file or directory that the path must name; 0: any.
        changed_s: When the file was changed last; one that was changed since, or has a writer, is left.
    """

    RESULT: ClassVar = int | None

    path: str
    recursive: bool = False
    inode: int = 0
    mounts: int | None = None
    changed_s: float | None = None

    def fold(self, state: State, moment: Moment) -> int | None:  # noqa: ARG002 - of the base
        """Move one row to the detached ones; return its inode if it is that of a file."""
        self.refuse_other_mounts(state)
        names = parse_path(self.path)
        found = existing(resolve(state.get, names), names)
        if self.inode not in {0, found.inode}:
            existing(None, names)
        if self.changed_s is not None:
            file, lease = state.get(File, found.inode), state.get(Lease, file_resource(found.inode))
            is_free = lease is None or lease.standing is Standing.FREE
            if file is None or file.changed_s != self.changed_s or not is_free:
                raise ConflictError(f"{self.path} was changed, or is being changed; it was not deleted")
        return delete(state, found, self.path, recursive=self.recursive)


def delete(state: State, found: Inode, path: str, *, recursive: bool) -> int | None:
    """Detach a file, whose inode is returned, or a directory, which is empty unless `recursive`."""
    if found.kind is InodeKind.DIRECTORY and not recursive and state.has(Inode, parent=found.inode):
        raise not_empty(path)
    detach(state, found)
    return found.inode if found.kind is InodeKind.FILE else None


def detach(state: State, inode: Inode) -> None:
    """Move a name to the detached ones; a file's lease ends."""
    state.delete(inode)
    state.put(msgspec.structs.replace(inode, parent=DETACHED, name=str(inode.inode)))
    if inode.kind is InodeKind.FILE:
        lease = state.get(Lease, file_resource(inode.inode))
        if lease is not None:
            state.delete(lease)


def not_empty(path: str) -> DirectoryNotEmptyError:
    """Return the error of a directory that cannot be deleted."""
    return DirectoryNotEmptyError(
        f"the directory {path} is not empty; nothing was changed; delete it with recursive=True (-r)", path
    )


def existing(found: Inode | None, names: tuple[str, ...]) -> Inode:
    """Return what a path names; raise `PathNotFoundError` if that is nothing."""
    if found is None:
        path = shown(names)
        raise PathNotFoundError(f"{path} does not exist; nothing was changed; check the path", path)
    return found


def refuse_existing(found: Inode | None, names: tuple[str, ...]) -> None:
    """Raise `PathExistsError` if a path names something."""
    if found is not None:
        path = shown(names)
        raise PathExistsError(f"{path} is a {found.kind} already; nothing was changed", path)


class DetachNames(Op, frozen=True, tag="detach-names"):
    """Detach names of a deleted directory, so that each is removed by itself; remove it with the last ones.

    Attributes:
        inode: The directory.
        names: Names in it; those that another process has detached are left out.
    """

    inode: int
    names: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        return [(Inode, (DETACHED, str(self.inode))), *((Inode, (self.inode, name)) for name in self.names)]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        found = [row for name in self.names if (row := state.get(Inode, self.inode, name)) is not None]
        if found:  # else another process has removed the directory, too
            refuse_attached(state, self.inode)
        for row in found:
            detach(state, row)
        above = state.get(Inode, DETACHED, str(self.inode))
        if above is not None and not state.has(Inode, parent=self.inode):
            state.delete(above)


class RemoveBlocks(Op, frozen=True, tag="remove-blocks"):
    """Remove blocks of deleted files whose replicas are gone, or that a truncate has cut off.

    Attributes:
        blocks: Blocks; those that another process has removed are left out.
        file: Their deleted file, to be removed with its last blocks; `DETACHED`: none.
    """

    RESULT: ClassVar = int

    blocks: tuple[int, ...]
    file: int = DETACHED

    def touches(self) -> Iterable[Key]:
        blocks = ((Block, (block,)) for block in self.blocks)
        return [(Inode, (DETACHED, str(self.file))), (File, (self.file,)), *blocks]

    def spans(self) -> Iterable[Span]:
        return [prefix(Member, block) for block in self.blocks]

    def fold(self, state: State, moment: Moment) -> int:
        """Delete the blocks and their members; return the number of blocks."""
        if moment.is_safe_mode:
            raise SafeModeError("the journal is in safe mode: no block is removed in it")
        found = [row for block in self.blocks if (row := state.get(Block, block)) is not None]
        for row in found:
            if row.file != DETACHED:
                refuse_attached(state, row.file)
            for member in state.where(Member, block=row.block):
                state.delete(member)
            state.delete(row)
        name, file = state.get(Inode, DETACHED, str(self.file)), state.get(File, self.file)
        if name is not None and file is not None and not state.has(Block, file=self.file):
            state.delete(name)
            state.delete(file)
        return len(found)


def refuse_attached(state: State, inode: int) -> None:
    """Raise `ConflictError` unless a file or directory was deleted."""
    if state.get(Inode, DETACHED, str(inode)) is None:
        raise ConflictError(f"{inode} was not deleted; nothing of it was removed")
