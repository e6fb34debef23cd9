"""Entries of a satellite: whiteouts of old files, and the steps of a move; the family `mounts`.

Inodes are those of the old side, the default journal, which never uses one again. So a whiteout is about one
file or directory, whatever gets its name later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec

from lockgate.storage_core.errors import (
    ConflictError,
    LeaseHeldError,
    ObjectNotFoundError,
    PathNotFoundError,
)
from lockgate.storage_core.files.namespace.mounts import AddMount, CutMount, MountTable
from lockgate.storage_core.files.namespace.rows import File, FileState, Inode, InodeKind, id_of
from lockgate.storage_core.files.namespace.tree import delete, existing, refuse_existing
from lockgate.storage_core.files.namespace.tree_paths import directory, parse_path, resolve
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal.entries.family import Family
from lockgate.storage_core.journal.entries.lease_entries import FencedOp, Lease, Standing, TakeLease
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Row, State
from lockgate.storage_core.stamp import Stamp

MOVE: Final = "satellite:move"
"""Resource of the lease of a satellite's mover."""
NO_MOVER: Final = Stamp()


class Whiteout(Row, frozen=True):
    """An old file, or directory with all below it, that is deleted on the old side, or will be.

    Attributes:
        inode: The file or directory of the old side.
        path: Its path there.
        seen_s: When a directory was hidden, by the clock of the old side: what is in it since then stays.
    """

    TABLE: ClassVar = "whiteout"
    KEY: ClassVar = ("inode",)

    inode: int
    path: str
    seen_s: float = 0.0


class WhiteOut(Op, frozen=True, tag="white-out"):
    """Hide a path of the old side, and delete what the satellite has there.

    Attributes:
        path: The path.
        inode: The file or directory of the old side.
        recursive: Whether a directory of the satellite may have names in it.
        is_replaced: The satellite has another file there, which stays.
        seen_s: See `Whiteout`.
    """

    RESULT: ClassVar = int | None

    path: str
    inode: int
    recursive: bool = False
    is_replaced: bool = False
    seen_s: float = 0.0

    def fold(self, state: State, moment: Moment) -> int | None:  # noqa: ARG002 - of the base
        """Insert the whiteout; detach the satellite's file, whose inode is returned, or directory."""
        try:
            found = resolve(state.get, parse_path(self.path))
        except PathNotFoundError:
            found = None  # its directory is on the old side only
        if self.is_replaced:
            existing(found, parse_path(self.path))
        state.put(Whiteout(inode=self.inode, path=self.path, seen_s=self.seen_s))
        if found is None or self.is_replaced:
            return None
        return delete(state, found, self.path, recursive=self.recursive)


class DropWhiteouts(Op, frozen=True, tag="drop-whiteouts"):
    """Drop whiteouts of what is deleted on the old side.

    While a mover has the lease, only the mover does it: what it has copied it must not publish later.

    Attributes:
        inodes: The files and directories of the old side.
        mover: Stamp of the mover's lease.
    """

    inodes: tuple[int, ...]
    mover: Stamp = NO_MOVER

    def touches(self) -> Iterable[Key]:
        """Return the lease and the whiteouts."""
        return [(Lease, (MOVE,)), *((Whiteout, (inode,)) for inode in self.inodes)]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete the rows."""
        lease = state.get(Lease, MOVE)
        if lease is not None and lease.standing is not Standing.FREE and lease.stamp != self.mover:
            return
        for inode in self.inodes:
            if (row := state.get(Whiteout, inode)) is not None:
                state.delete(row)


class HoldOldFile(Op, frozen=True, tag="hold-old-file"):
    """Take the lease of a closed file on the old side, for the time between its two steps of a move.

    Attributes:
        path: The file.
        inode: Its inode.
        changed_s: When it was changed last, before it was copied.
        length_bytes: Its length then.
        mover: Holder of the lease; another mover of the same satellite takes it over.
        hard_s: Without a renewal for this long, the file may be recovered, which gives the lease back.
    """

    path: str
    inode: int
    changed_s: float
    length_bytes: int
    mover: str
    hard_s: float

    def touches(self) -> Iterable[Key]:
        """Return the file and its lease."""
        return [(File, (self.inode,)), (Lease, (file_resource(self.inode),))]

    def fold(self, state: State, moment: Moment) -> None:
        """Take the lease if the file is still closed, as it was copied."""
        names = parse_path(self.path)
        found, file = existing(resolve(state.get, names), names), state.get(File, self.inode)
        lease = state.get(Lease, file_resource(self.inode))
        if lease is not None and lease.standing is not Standing.FREE and lease.holder != self.mover:
            raise LeaseHeldError(f"{self.path} is open for {lease.holder}; it was not moved")
        is_closed = found.inode == self.inode and file is not None and file.state is FileState.CLOSED
        if (
            not is_closed
            or file is None
            or (file.changed_s, file.length_bytes) != (self.changed_s, self.length_bytes)
        ):
            raise ConflictError(f"{self.path} was changed after it was copied; it is not moved now")
        if lease is not None:
            state.delete(lease)
        TakeLease(
            resource=file_resource(self.inode),
            holder=self.mover,
            purpose="write",
            soft_s=self.hard_s,
            hard_s=self.hard_s,
            detail=self.path,
        ).fold(state, moment)


class Adopt(FencedOp, frozen=True, tag="adopt"):
    """Make a copied file visible in the satellite, and hide the old one; or make a directory that it has.

    Refused if the old file, or a directory above it, was deleted meanwhile.

    Attributes:
        path: The path.
        inode: The file or directory of the old side.
        above: The directories of the old side that it is in.
        copy: Path of the copy; empty: a directory.
        made_s: When the old one was made.
        changed_s: When the old one was changed last.
        until_s: The end of the time in which the old file is held, by the clock of this journal.
    """

    path: str
    inode: int
    above: tuple[int, ...]
    copy: str
    made_s: float
    changed_s: float
    until_s: float

    def touches(self) -> Iterable[Key]:
        """Return the lease and the whiteouts."""
        return [*super().touches(), *((Whiteout, (one,)) for one in (self.inode, *self.above))]

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> None:  # noqa: ARG002 - of the base
        """Move the copy to the path and insert the whiteout, or insert the directory."""
        if any(state.get(Whiteout, one) is not None for one in (self.inode, *self.above)):
            raise ObjectNotFoundError(f"{self.path} was deleted; it is not moved")
        if moment.at_s > self.until_s:
            raise ConflictError(f"{self.path}: the old file is not held any more; it is not moved now")
        names = parse_path(self.path)
        found, parent = resolve(state.get, names), directory(state.get, names[:-1])
        if not self.copy:
            if found is None:
                made = Inode(
                    parent=parent,
                    name=names[-1],
                    inode=id_of(moment.stamp),
                    kind=InodeKind.DIRECTORY,
                    made_s=self.made_s,
                )
                state.put(made)
            return
        refuse_existing(found, names)
        names_of_copy = parse_path(self.copy)
        copied = existing(resolve(state.get, names_of_copy), names_of_copy)
        file = state.get(File, copied.inode)
        assert file is not None  # noqa: S101 - a row beside each file
        state.delete(copied)
        state.put(msgspec.structs.replace(copied, parent=parent, name=names[-1], made_s=self.made_s))
        state.put(msgspec.structs.replace(file, changed_s=self.changed_s))
        state.put(Whiteout(inode=self.inode, path=self.path))


MOUNTS: Final = Family(
    name="mounts",
    version=1,
    rows=(MountTable, Whiteout),
    ops=(AddMount, CutMount, WhiteOut, DropWhiteouts, HoldOldFile, Adopt),
)
