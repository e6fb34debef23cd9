"""What the journal has of files: by path, by directory, by file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lockgate.storage_core.errors import PathIsDirectoryError, PathNotDirectoryError, PathNotFoundError
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.namespace.file_blocks import recorded
from lockgate.storage_core.files.namespace.rows import (
    DETACHED,
    ROOT,
    Block,
    File,
    FileState,
    Inode,
    InodeKind,
    Member,
    WrittenLength,
)
from lockgate.storage_core.files.namespace.tree import existing
from lockgate.storage_core.files.namespace.tree_paths import Get, directory, parse_path, resolve, shown
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal.read.row_paths import Tree
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.protocol import in_pages

TREE: Final = Tree(Inode, "inode", ROOT, File)
PAGE: Final = 500
"""Names and blocks of each query, and rows of each entry that removes them."""


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A name in the tree.

    Attributes:
        is_open: Whether a file has a writer, or one that ended without closing it.
        length_bytes: Length at the last commits of the blocks; more may be flushed to a file that is open.
        changed_s: When it was made, opened or closed last.
        made_s: When it was made.
        journal: Journal of the satellite that has it; empty: the one that was opened.
    """

    name: str
    inode: int
    is_directory: bool
    is_open: bool = False
    length_bytes: int = 0
    blocks: int = 0
    changed_s: float
    made_s: float
    journal: str = ""


def status(reading: Reading, path: str) -> FileStatus:
    """Return what a path names.

    Raises:
        PathNotFoundError: It does not exist.
        InvalidInputError: It is no path of a file or directory.
    """
    names = parse_path(path)
    if not names:
        return FileStatus(name="", inode=ROOT, is_directory=True, changed_s=0, made_s=0)
    found = reading.on_path(TREE, names)
    row = existing(resolve(_get(found), names), names)
    return status_of(row, found[-1][1])


def file_at(reading: Reading, path: str) -> int:
    """Return the inode of the file of a path.

    Raises:
        PathNotFoundError: It does not exist.
        PathIsDirectoryError: It is a directory.
    """
    names = parse_path(path)
    found = existing(resolve(_get(reading.on_path(TREE, names)), names), names) if names else None
    if found is None or found.kind is not InodeKind.FILE:
        raise PathIsDirectoryError(
            f"{path} is a directory, not a file; nothing was changed; name a file in it", path
        )
    return found.inode


def listing(reading: Reading, path: str, after: str | None = None) -> list[FileStatus]:
    """Return a page of the names in a directory, in order, after a name."""
    names = parse_path(path)
    page = reading.below(TREE, names, after=after or "", limit=PAGE)
    if not page:
        directory(_get(reading.on_path(TREE, names)), names)
    return [status_of(row, file) for row, file in page]


def names_in(reading: Reading, inode: int, after: str | None = None) -> Sequence[Inode]:
    """Return a page of the names in a directory, in order."""
    return reading.where(Inode, {"parent": inode}, limit=PAGE, after=(inode, after or ""))


def blocks_of(reading: Reading, file: int) -> tuple[BlockRecord, ...]:
    """Return the blocks of a file in their order; `DETACHED`: those that truncates have cut off."""
    return tuple(records(reading, _rows_of(reading, file)))


def is_open(reading: Reading, inode: int) -> bool:
    """Return whether a file has a writer, or one that ended without closing it; see `FileStatus.is_open`.

    Raises:
        PathNotFoundError: It was deleted.
    """
    row = reading.get(File, inode)
    if row is None or not paths_of(reading, [inode]):
        raise PathNotFoundError(f"file {inode} was deleted; nothing more is read")
    return row.state is FileState.OPEN


def whole_file(reading: Reading, file: int) -> tuple[BlockRecord, ...]:
    """Return all blocks of a file in their order, for a reader, who may have opened it before its deletion.

    Raises:
        PathNotFoundError: It was deleted, and not all of its blocks are there any more.
    """
    row, found = reading.get(File, file), _rows_of(reading, file)
    if row is None or len(found) < row.blocks:
        raise PathNotFoundError(f"file {file} was deleted, and its blocks are removed; nothing was read")
    return tuple(current_records(reading, found))


def named_file(reading: Reading, path: str) -> tuple[int, tuple[BlockRecord, ...]]:
    """Return the inode and the blocks of the file of a path; raises as `file_at`."""
    inode = file_at(reading, path)
    return inode, whole_file(reading, inode)


def block(reading: Reading, named: BlockId) -> BlockRecord | None:
    """Return a block, None if it was removed."""
    row = reading.get(Block, named)
    return None if row is None else next(iter(records(reading, [row])))


def paths_of(reading: Reading, files: Iterable[int]) -> dict[int, str]:
    """Return the paths of files by inode, without those that were deleted, by a query a level of the tree."""
    found: dict[int, str] = {}
    above: dict[int, tuple[int, tuple[str, ...]]] = {file: (file, ()) for file in files}
    while above:
        inodes = sorted({inode for inode, _ in above.values()})
        rows = {row.inode: row for row in reading.within(Inode, ("inode",), [(inode,) for inode in inodes])}
        below, above = above, {}
        for file, (inode, names) in below.items():
            row = rows.get(inode)
            if row is not None and row.parent == ROOT:
                found[file] = shown((row.name, *names))
            elif row is not None and row.parent != DETACHED:
                above[file] = row.parent, (row.name, *names)
    return found


def records(reading: Reading, rows: Sequence[Block]) -> Iterable[BlockRecord]:
    """Yield blocks with their members."""
    for page in in_pages(rows, PAGE):
        members: dict[int, list[Member]] = {}
        for member in reading.within(Member, ("block",), [(row.block,) for row in page]):
            members.setdefault(member.block, []).append(member)
        for row in page:
            yield recorded(row, members.get(row.block, ()))


def current_records(reading: Reading, rows: Sequence[Block]) -> Iterable[BlockRecord]:
    """Yield blocks; one that is being written with what all members are known to have."""
    for row, record in zip(rows, records(reading, rows), strict=True):
        length = 0 if record.is_settled else acknowledged(reading, row.file, record.block, record.stamp)
        yield replace(record, acknowledged_bytes=length) if length else record


def acknowledged(reading: Reading, file: int, block: BlockId, stamp: Stamp) -> int:
    """Return how many bytes of a block all members had at this stamp, as far as the journal knows, or 0."""
    row = reading.get(WrittenLength, file)
    return row.length_bytes if row is not None and (row.block, row.stamp) == (block, stamp) else 0


def status_of(row: Inode, file: File | None, journal: str = "") -> FileStatus:
    """Return the status of a name; a directory has no file."""
    found = FileStatus(
        name=row.name,
        inode=row.inode,
        is_directory=file is None,
        changed_s=row.made_s,
        made_s=row.made_s,
        journal=journal,
    )
    if file is None:
        return found
    is_open, length = file.state is FileState.OPEN, file.length_bytes
    return replace(found, is_open=is_open, length_bytes=length, blocks=file.blocks, changed_s=file.changed_s)


def _get(found: Iterable[tuple[Inode, File | None]]) -> Get:
    rows = {row.key: row for row, _ in found}
    return lambda _, *key: rows.get(key)


def _rows_of(reading: Reading, file: int) -> list[Block]:
    return sorted(reading.where(Block, {"file": file}), key=lambda row: row.ordinal)


class Walked(NamedTuple):
    """A name, and the directories that it is in below the first one."""

    path: str
    status: FileStatus
    above: tuple[Walked, ...]


def walk(
    list_page: Callable[[str, str | None], Sequence[FileStatus]], path: str, above: tuple[Walked, ...] = ()
) -> Iterator[Walked]:
    """Yield the names below a directory, a directory after what is in it; none if it was deleted meanwhile.

    Args:
        list_page: Lists a directory after a name, as `Files.list` does.
        above: Directories that it is in.
    """
    after: str | None = None
    with suppress(PathNotFoundError, PathNotDirectoryError):
        while page := list_page(path, after):
            for found in page:
                one = Walked(f"{path.rstrip('/')}/{found.name}", found, above)
                if found.is_directory:
                    yield from walk(list_page, one.path, (*above, one))
                yield one
            after = page[-1].name
