"""Real files until the task commits: they can be sought in. Shared by `staging` and `file-*`.

A writer that makes files in the directory by itself may rename them too; what `open_file` opened stays where
it is, for only so can be told whether it is still there.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from storage_core.commit.committers.protocol import Uploads
from storage_core.errors import ConflictError
from storage_core.stores.local_errors import translated
from storage_core.stores.protocol import check_key


def open_file(root: Path, path: str) -> BinaryIO:
    """Open a new file below a directory of the attempt's own.

    Raises:
        InvalidInputError: The path cannot be, or one of its names is too long for the file system.
    """
    target = root / check_key(path)
    with translated("open", str(target), changes=True):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return target.open("xb")


def add_files(uploads: Uploads, root: Path) -> None:
    """Close what is open still, and turn every file below a directory into a pending upload.

    Raises:
        ConflictError: The directory is gone: what is not there must not be taken for nothing to commit.
        StoreUnavailableError: What was written last could not reach the disk.
    """
    for path, file in uploads.opened.items():
        # Not "changes": what a file may lack is lost with its attempt, so there is nothing to find out.
        with translated("close", str(root / path), changes=False):
            file.close()
    if not root.is_dir():
        raise ConflictError(
            f"{root} is gone, and what the task wrote with it; nothing of this attempt is committed; "
            "run the task again"
        )
    for local in sorted(path for path in root.rglob("*") if path.is_file()):
        uploads.add_file(local, local.relative_to(root).as_posix())
