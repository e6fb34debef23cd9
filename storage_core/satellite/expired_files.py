"""Retention: delete files by path pattern and age, in bounded batches.

It is what empties the old side of a mount: new files are in the satellite, and the old ones get old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import (
    DirectoryNotEmptyError,
    InvalidInputError,
    PathNotFoundError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.queries import FileStatus, walk
from lockgate.storage_core.files.namespace.tree_paths import parse_path
from lockgate.storage_core.stores.protocol import in_pages

BATCH: Final = 200
"""Files that are deleted in one transaction, so that no writer waits for more."""

DAY_S: Final = 86_400.0


class Retained(msgspec.Struct, kw_only=True):
    """What a retention has deleted, or would delete.

    Attributes:
        files: Number of files.
        directories: Number of directories that were empty and as old.
        size_bytes: Bytes of the files.
    """

    files: int = 0
    directories: int = 0
    size_bytes: int = 0


def apply_retention(
    files: Files,
    rules: Mapping[str, float],
    *,
    dry_run: bool = True,
    note: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> Retained:
    """Delete what is older than its limit, a batch at a time; one that is stopped goes on in the next run.

    A file that has a writer stays. A file is as old as its last opening or close, a directory as its making;
    directories are deleted only if they are empty.

    Args:
        files: The files.
        rules: Age in days by pattern: `/logs/**` is all below a directory, `*` and `?` match in one name.
        dry_run: Delete nothing.
        note: Receives each path.
        progress: Gets the number of files.

    Raises:
        InvalidInputError: A pattern names no directory, or an age is not above 0.
    """
    done = Retained()
    roots = {pattern: _root(pattern) for pattern in rules}  # before anything is deleted
    for pattern, days in rules.items():
        if not days > 0:
            raise InvalidInputError(f"retention of {pattern}: an age of {days:g} days is not above 0")
    now_s = files.now_s()
    for pattern, days in rules.items():
        old = (
            (path, status)
            for path, status, _ in walk(files.list, roots[pattern])
            if not status.is_open and _matches(path, pattern) and now_s - _changed_s(status) > days * DAY_S
        )
        for batch in in_pages(old, BATCH):
            closed = [one for one in batch if not one[1].is_directory]
            for path, _ in closed:
                note(path)
            done.files += len(closed) if dry_run else files.delete_closed(closed)
            done.size_bytes += sum(status.length_bytes for _, status in closed)
            for path, status in batch:
                if status.is_directory and _is_removed(files, path, dry_run):
                    done.directories += 1
                    note(path)
            progress("retention", done.files, 0)
    return done


def _is_removed(files: Files, path: str, dry_run: bool) -> bool:
    """Delete a directory if it is empty; return whether it is."""
    if dry_run:
        return not files.list(path)
    try:
        files.delete(path)
    except (DirectoryNotEmptyError, PathNotFoundError):
        return False
    return True


def _root(pattern: str) -> str:
    """Return the directory that all matches are below."""
    names = pattern.split("/")[1:]
    first = next((at for at, name in enumerate(names) if set(name) & set("*?[")), None)
    if not pattern.startswith("/") or not first:
        raise InvalidInputError(
            f"retention of {pattern!r}: it needs a directory and a pattern, such as /logs/** or /logs/*.log; "
            "nothing was deleted"
        )
    root = "/" + "/".join(names[:first])
    parse_path(root)
    return root


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path matches, name by name; `**` at the end matches any names."""
    names, wanted = path.split("/"), pattern.split("/")
    if wanted[-1] == "**" and len(names) >= len(wanted):
        names, wanted = names[: len(wanted) - 1], wanted[:-1]
    return len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))


def _changed_s(status: FileStatus) -> float:
    return status.made_s if status.is_directory else status.changed_s
