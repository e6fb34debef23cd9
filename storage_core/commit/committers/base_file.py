"""Real files until the task commits: they can be sought in. Shared by `staging` and `file-*`.

A writer that makes files in the directory by itself may rename them too; what `open_file` opened stays where
it is, for only so can be told whether it is still there.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from lockgate.storage_core.commit.committers.protocol import Uploads
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.stores.os_errors import translated
from lockgate.storage_core.stores.protocol import check_key


def open_file(root: Path, path: str) -> BinaryIO:
    """Open a new file below a directory of the attempt's own, which is there already.

    Raises:
        ConflictError: The directory is gone, and what was written before.
        InvalidInputError: The path cannot be, or one of its names is too long for the file system.
    """
    target = root / check_key(path)
    with translated("open", str(target), changes=True):
        try:
            # One by one, and never the root: made anew it would hide that what was in it is gone.
            for folder in reversed(target.relative_to(root).parents[:-1]):
                (root / folder).mkdir(exist_ok=True, mode=0o700)
            return target.open("xb")
        except FileNotFoundError:
            raise _gone(root) from None


def add_files(uploads: Uploads, root: Path) -> None:
    """Close what is open still, and turn every file below a directory into a pending upload.

    Raises:
        ConflictError: The directory is gone, or a file that was opened: what is not there must not be taken
            for nothing to commit.
        StoreUnavailableError: What was written last could not reach the disk.
    """
    opened = uploads.opened
    for path, file in opened.items():
        # Not "changes": what a file may lack is lost with its attempt, so there is nothing to find out.
        with translated("close", str(root / path), changes=False):
            file.close()
    if not root.is_dir():
        raise _gone(root)
    found = {local.relative_to(root).as_posix(): local for local in root.rglob("*") if local.is_file()}
    for path in sorted(opened.keys() - found.keys()):
        raise _gone(root / path)
    for path, local in sorted(found.items()):
        uploads.add_file(local, path)


def _gone(path: Path) -> ConflictError:
    return ConflictError(
        f"{path} is gone, and what the task wrote with it; nothing of this attempt is committed; "
        "see that nothing else clears its directory, and run the task again"
    )
