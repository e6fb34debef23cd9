"""Real files until the task commits: they can be sought in and renamed. Shared by `staging` and `file-*`."""

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
    """Turn every file below a directory into a pending upload.

    Raises:
        ConflictError: The directory is gone: what is not there must not be taken for nothing to commit.
    """
    if not root.is_dir():
        raise ConflictError(
            f"{root} is gone, and what the task wrote with it; nothing of this attempt is committed; "
            "run the task again"
        )
    for local in sorted(path for path in root.rglob("*") if path.is_file()):
        uploads.add_file(local, local.relative_to(root).as_posix())
