"""Real files until the task commits: they can be sought in. Base of `staging` and `file-*`.

A writer that makes files in the directory by itself may rename them too; what `open_file` opened stays where
it is, for only so can be told whether it is still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lockgate.storage_core.commit.committers.protocol import Uploads, VisibleAt
from lockgate.storage_core.commit.records.job import ScopeName
from lockgate.storage_core.commit.records.task import PendingFile
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.stores.os_errors import translated
from lockgate.storage_core.stores.protocol import check_key


@dataclass(frozen=True)
class RealFilesCommitter:
    """Base of the committers whose attempts write real files in a directory of their own."""

    visible_at: VisibleAt = "job commit"
    repeatable: bool = True
    recovers_tasks: bool = True
    scope: ScopeName = "destination"
    safe: bool = True
    merges: bool = False

    def directory(self, uploads: Uploads) -> Path:
        """Return the directory in which the attempt writes."""
        return uploads.staging_dir

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open a file in the attempt's directory; it can be sought in."""
        return open_file(self.directory(uploads), path)

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Do nothing: the upload waits for the job."""

    def before_task_commit(self, uploads: Uploads) -> None:
        """Turn every file of the attempt's directory into a pending upload."""
        add_files(uploads, self.directory(uploads))

    def after_task_commit(self, uploads: Uploads) -> None:
        """Do nothing: the uploads wait for the job."""


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
