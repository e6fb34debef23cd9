"""Entries that remove what was deleted, each of a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from lockgate.storage_core.errors import ConflictError, SafeModeError
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, File, Inode, Member
from lockgate.storage_core.files.namespace.tree import detach
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix


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
