"""List a directory tree ordered by the complete key, like an object store.

`a-b` comes before `a/b`, because `-` sorts before `/`, so a folder is sorted as `a/`. For each level of the
tree, the names of one folder are in memory.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from lockgate.storage_core.stores.local.rooted_dir import RootedDir
from lockgate.storage_core.stores.protocol import PAGE, ObjectInfo, UploadInfo

UPLOADS: Final = ("_lockgate", "uploads")
TEMPORARY: Final = ("_lockgate", "tmp")
LOCKS: Final = ("_lockgate", "locks")

_RECORDS: Final = "/_lockgate/"
_HIDDEN: Final = re.compile(r"(?:^|/)_lockgate/(?:uploads|tmp|locks)(?:/|$)")
_UPLOAD_NAME: Final = re.compile(r"~([0-9a-f]{32})")
_NO_FOLDER: Final = suppress(FileNotFoundError, NotADirectoryError)
"""A missing folder, or a file in its place, is listed as empty."""


def is_hidden(key: str) -> bool:
    """Return whether a key is in a hidden folder of this destination or of a nested one."""
    return _HIDDEN.search(key) is not None


def version_of(status: os.stat_result) -> str:
    """Return a version that changes whenever a file is replaced or written to."""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def object_info(key: str, status: os.stat_result) -> ObjectInfo:
    """Return the `ObjectInfo` of a file."""
    return ObjectInfo(
        key=key, size=status.st_size, version=version_of(status), modified_s=status.st_mtime_ns / 1e9
    )


def objects(tree: RootedDir, prefix: str, after: str) -> Iterator[ObjectInfo]:
    """Yield the visible files whose key starts with `prefix` and is greater than `after`, ordered by key.

    A symbolic link is listed as an object and never followed.
    """
    folder = prefix.rpartition("/")[0]
    names = folder.split("/") if folder else []
    if {"", ".", ".."}.isdisjoint(names):
        yield from _objects_below(tree, names, prefix, after)


def _objects_below(tree: RootedDir, names: list[str], prefix: str, after: str) -> Iterator[ObjectInfo]:
    base = "".join(f"{name}/" for name in names)
    if is_hidden(base):
        return
    with _NO_FOLDER, tree.folder(names) as here:
        for name in _ordered(here):
            key = base + name
            if name.endswith("/"):
                if _may_hold(key, prefix, after):
                    yield from _objects_below(tree, [*names, name[:-1]], prefix, after)
            elif key.startswith(prefix) and key > after:
                with suppress(FileNotFoundError):
                    status = os.lstat(name, dir_fd=here)
                    if _is_object(status):
                        yield object_info(key, status)


def pages_of(found: Iterable[ObjectInfo], prefix: str, page_size: int) -> Iterator[list[ObjectInfo]]:
    """Yield pages of a listing; one ends at a destination's first record, so that the others can be skipped.

    Args:
        found: Listing, of which no more is read than a page needs.
        prefix: Prefix of the listing; records of a destination that it is in end no page.
        page_size: Maximum number of objects in a page.
    """
    size, is_record = max(1, min(page_size, PAGE)), False
    page: list[ObjectInfo] = []
    for info in found:
        page.append(info)
        was_record, is_record = is_record, _RECORDS in f"/{info.key[len(prefix) :]}"
        if len(page) == size or (is_record and not was_record):
            yield page
            page = []
    if page:
        yield page


def present(tree: RootedDir, folder: Sequence[str], names: Iterable[str]) -> Iterator[str]:
    """Yield the names under which a folder has an object."""
    with _NO_FOLDER, tree.folder(folder) as here:
        for name in names:
            with suppress(FileNotFoundError):
                if _is_object(os.lstat(name, dir_fd=here)):
                    yield name


def _is_object(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)


def _may_hold(folder: str, prefix: str, after: str) -> bool:
    in_prefix = folder.startswith(prefix) or prefix.startswith(folder)
    return in_prefix and (folder > after or after.startswith(folder))


def _ordered(folder: int) -> list[str]:
    """Return a folder's entries in key order; subfolders end in `/`."""
    with os.scandir(folder) as entries:
        names = [f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in entries]
    # Python compares by code point, which is the order of the UTF-8 bytes.
    return sorted(names)


def uploads(tree: RootedDir, prefix: str) -> Iterator[tuple[UploadInfo, os.stat_result]]:
    """Yield the hidden files of pending uploads whose key starts with `prefix`, ordered by key."""
    folder = prefix.rpartition("/")[0]
    names = folder.split("/") if folder else []
    if {"", ".", ".."}.isdisjoint(names):
        yield from _uploads_below(tree, names, prefix)


def _uploads_below(
    tree: RootedDir, names: list[str], prefix: str
) -> Iterator[tuple[UploadInfo, os.stat_result]]:
    # A folder may contain uploads of the key with its name, and, sorted as `name/`, of keys below it.
    base = "".join(f"{name}/" for name in names)
    with _NO_FOLDER, tree.folder([*UPLOADS, *names]) as here:
        folders = [name for name in _ordered(here) if name.endswith("/")]
        for name in sorted([*folders, *(folder[:-1] for folder in folders)]):
            key = base + name
            if name.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from _uploads_below(tree, [*names, name[:-1]], prefix)
            elif key.startswith(prefix):
                yield from _uploads_of(tree, [*names, name], key)


def _uploads_of(tree: RootedDir, names: list[str], key: str) -> Iterator[tuple[UploadInfo, os.stat_result]]:
    with _NO_FOLDER, tree.folder([*UPLOADS, *names]) as here:
        for entry in sorted(os.listdir(here)):  # noqa: PTH208 - pathlib cannot list an open folder
            named = _UPLOAD_NAME.fullmatch(entry)
            with suppress(FileNotFoundError):
                status = os.lstat(entry, dir_fd=here)
                if named and stat.S_ISREG(status.st_mode):
                    # Not every file system records a file's creation time; the last write is safe, too.
                    begun_s = status.st_mtime_ns / 1e9
                    yield (
                        UploadInfo(key=key, upload_id=named[1], begun_s=begun_s, size=status.st_size),
                        status,
                    )
