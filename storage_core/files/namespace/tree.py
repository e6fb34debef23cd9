"""Entries that change names: directories made, names moved, deleted and, each a bounded number, removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import msgspec

from lockgate.storage_core.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    PathConflictError,
    PathExistsError,
    PathNotFoundError,
    SafeModeError,
)
from lockgate.storage_core.files.namespace.mounts import TABLE_KEY, refuse_other_mounts
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, File, Inode, InodeKind, Member, id_of
from lockgate.storage_core.files.namespace.tree_paths import directory, parse_path, resolve, shown
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal.entries.lease_entries import Lease, Standing
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix


class MakeDirectory(Op, frozen=True, tag="make-directory"):
    """Make a directory in an existing one.

    Attributes:
        mounts: Version of the mount table that the writer has read.
    """

    path: str
    mounts: int = 0

    def touches(self) -> Iterable[Key]:
        """Return the mount table."""
        return [TABLE_KEY]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the name."""
        names = parse_path(self.path)
        refuse_other_mounts(state, self.mounts)
        refuse_existing(resolve(state, names), names)
        state.put(
            Inode(
                parent=directory(state, names[:-1]),
                name=names[-1],
                inode=id_of(moment.stamp),
                kind=InodeKind.DIRECTORY,
                made_s=moment.at_s,
            )
        )


class Deleted(msgspec.Struct, frozen=True):
    """What was deleted."""

    inode: int
    kind: Literal["directory", "file"]


class Rename(Op, frozen=True, tag="rename"):
    """Move a file or a directory. An open file keeps its lease, which names its inode.

    Attributes:
        replaces: Whether a file takes the place of another one, which is deleted.
        mounts: Version of the mount table that the writer has read.
    """

    RESULT: ClassVar = Deleted | None

    path: str
    target: str
    replaces: bool = False
    mounts: int = 0

    def touches(self) -> Iterable[Key]:
        """Return the mount table."""
        return [TABLE_KEY]

    def fold(self, state: State, moment: Moment) -> Deleted | None:  # noqa: ARG002 - of the base
        """Replace one row, and detach the one that it replaces."""
        names, target = parse_path(self.path), parse_path(self.target)
        refuse_other_mounts(state, self.mounts)
        found = existing(resolve(state, names), names)
        if target[: len(names)] == names:
            raise PathConflictError(
                f"{self.path} cannot be moved to {self.target}, which is itself or inside it; "
                "nothing was changed",
                self.path,
            )
        old = resolve(state, target)
        is_replaced = old is not None and self.replaces and {old.kind, found.kind} == {InodeKind.FILE}
        if not is_replaced:
            refuse_existing(old, target)
        elif old is not None:
            detach(state, old)
        state.delete(found)
        state.put(msgspec.structs.replace(found, parent=directory(state, target[:-1]), name=target[-1]))
        return None if old is None else Deleted(old.inode, "file")


class Delete(Op, frozen=True, tag="delete"):
    """Detach a file or a directory from the tree; its blocks are removed later, in batches.

    The lease of a file ends, so that its writer is fenced at the journal.

    Attributes:
        recursive: Whether a directory may have names in it.
        inode: The file or directory that the path must name; 0: any.
        mounts: Version of the mount table that the writer has read; None: whatever is mounted.
        changed_s: When the file was changed last; one that was changed since, or has a writer, is left.
    """

    RESULT: ClassVar = Deleted

    path: str
    recursive: bool = False
    inode: int = 0
    mounts: int | None = None
    changed_s: float | None = None

    def touches(self) -> Iterable[Key]:
        """Return the mount table."""
        return () if self.mounts is None else [TABLE_KEY]

    def fold(self, state: State, moment: Moment) -> Deleted:  # noqa: ARG002 - of the base
        """Move one row to the detached ones."""
        if self.mounts is not None:
            refuse_other_mounts(state, self.mounts)
        names = parse_path(self.path)
        found = existing(resolve(state, names), names)
        if self.inode not in {0, found.inode}:
            existing(None, names)
        if self.changed_s is not None:
            file, lease = state.get(File, found.inode), state.get(Lease, file_resource(found.inode))
            is_free = lease is None or lease.standing is Standing.FREE
            if file is None or file.changed_s != self.changed_s or not is_free:
                raise ConflictError(f"{self.path} was changed, or is being changed; it was not deleted")
        is_directory = found.kind is InodeKind.DIRECTORY
        if is_directory and not self.recursive and state.has(Inode, parent=found.inode):
            raise not_empty(self.path)
        detach(state, found)
        return Deleted(found.inode, "directory" if is_directory else "file")


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
    """Return what a path names.

    Raises:
        PathNotFoundError: It does not exist.
    """
    if found is None:
        path = shown(names)
        raise PathNotFoundError(f"{path} does not exist; nothing was changed; check the path", path)
    return found


def refuse_existing(found: Inode | None, names: tuple[str, ...]) -> None:
    """Raise if a path names something.

    Raises:
        PathExistsError: It does.
    """
    if found is not None:
        path = shown(names)
        raise PathExistsError(f"{path} is a {found.kind} already; nothing was changed", path)


class DetachNames(Op, frozen=True, tag="detach-names"):
    """Detach names of a deleted directory, so that each is removed by itself.

    Attributes:
        inode: The directory.
        names: Names in it; those that another process has detached are left out.
    """

    inode: int
    names: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        """Return the directory and the names."""
        return [(Inode, (DETACHED, str(self.inode))), *((Inode, (self.inode, name)) for name in self.names)]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Detach the names."""
        found = [row for name in self.names if (row := state.get(Inode, self.inode, name)) is not None]
        if found:  # else another process has removed the directory, too
            refuse_attached(state, self.inode)
        for row in found:
            detach(state, row)


class RemoveBlocks(Op, frozen=True, tag="remove-blocks"):
    """Remove blocks of deleted files whose replicas are gone, or that a truncate has cut off.

    Attributes:
        blocks: Blocks; those that another process has removed are left out.
    """

    RESULT: ClassVar = int

    blocks: tuple[int, ...]

    def touches(self) -> Iterable[Key]:
        """Return the blocks."""
        return [(Block, (block,)) for block in self.blocks]

    def spans(self) -> Iterable[Span]:
        """Return the members of the blocks."""
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
        return len(found)


class RemoveInode(Op, frozen=True, tag="remove-inode"):
    """Remove a deleted file without blocks, or a deleted directory without names.

    Attributes:
        inode: The file or directory; one that another process has removed is left out.
    """

    inode: int

    def touches(self) -> Iterable[Key]:
        """Return the name and the file."""
        return [(Inode, (DETACHED, str(self.inode))), (File, (self.inode,))]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete the rows."""
        row, file = state.get(Inode, DETACHED, str(self.inode)), state.get(File, self.inode)
        if row is None:
            return
        if state.has(Inode, parent=self.inode) or state.has(Block, file=self.inode):
            raise ConflictError(f"{self.inode} still has names or blocks; it was not removed")
        state.delete(row)
        if file is not None:
            state.delete(file)


def refuse_attached(state: State, inode: int) -> None:
    """Raise unless a file or directory was deleted.

    Raises:
        ConflictError: It is in the tree.
    """
    if state.get(Inode, DETACHED, str(inode)) is None:
        raise ConflictError(f"{inode} was not deleted; nothing of it was removed")
