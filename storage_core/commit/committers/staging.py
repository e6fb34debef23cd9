"""`staging`, `file-v1` and `file-v2`: files are real files, and become uploads when their task commits.

They suit writers that seek or rename, and rows that are audited before anything is uploaded. A writer that
creates files in the directory itself may also rename them. A file opened with `open` must keep its path: the
task commit checks that it is still there.
Source: S3A committers, "The Staging Committer"; Hadoop's FileOutputCommitter, algorithms 1 and 2.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from lockgate.storage_core.commit.committers.committer import Committer, Place, Uploads, VisibleAt
from lockgate.storage_core.errors import ConflictError, LockgateError
from lockgate.storage_core.stores.os_errors import translated
from lockgate.storage_core.stores.protocol import check_key

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, kw_only=True)
class StagingCommitter(Committer):
    """Writes real, seekable files to disk first, then uploads.

    Attributes:
        file_mode: Mode of a new file: staged files are their owner's only.
    """

    name: str = "staging"
    uncommitted: str = "files in a staging directory, uploaded at task commit"
    use: str = "default in the DAG: any writer, audits of the rows"
    file_mode: int = 0o600

    def directory(self, uploads: Uploads) -> Path:
        """Return the directory in which the attempt writes."""
        return uploads.staging_dir

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open a new, seekable file in the attempt's directory.

        Raises:
            ConflictError: The directory and the files written before are gone.
            InvalidInputError: The path is invalid, or one of its names is too long for the file system.
        """
        root = self.directory(uploads)
        target = root / check_key(path)
        with translated("open", str(target), changes=True):
            try:
                # Never the root: recreating it would hide that its files are gone.
                for folder in reversed(target.relative_to(root).parents[:-1]):
                    (root / folder).mkdir(exist_ok=True, mode=0o700)
                return _StagedFile(target, self.file_mode, lambda: uploads.drop(path))
            except FileNotFoundError:
                raise _gone(root) from None

    def before_task_commit(self, uploads: Uploads) -> None:
        """Turn every file of the attempt's directory into a pending upload.

        Raises:
            ConflictError: The directory or an opened file is gone. A missing file must not look like one
                that was never written.
        """
        root, opened = self.directory(uploads), uploads.opened
        if not root.is_dir():
            raise _gone(root)
        found = {local.relative_to(root).as_posix(): local for local in root.rglob("*") if local.is_file()}
        for path in sorted(opened.keys() - found.keys()):
            raise _gone(root / path)
        for path, local in sorted(found.items()):
            uploads.add_file(local, path, adopt=True)


class _StagedFile(io.BufferedWriter):
    """A staged file. It is dropped if its block raises or it cannot be closed: then it may be incomplete."""

    def __init__(self, target: Path, mode: int, drop: Callable[[], None]) -> None:
        super().__init__(io.FileIO(target, "x", opener=partial(os.open, mode=mode)))
        self._target = target
        self._drop = drop

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes.

        Raises:
            StoreUnavailableError: The disk is full.
        """
        with translated("write", str(self._target), changes=False):
            return super().write(data)

    def close(self) -> None:
        """Write the buffered bytes and close the file.

        Raises:
            StoreUnavailableError: The last writes could not reach the disk; the file is dropped.
        """
        if self.closed:
            return
        # Not "changes": an incomplete file is dropped, so its state need not be known.
        with translated("close", str(self._target), changes=False):
            try:
                super().close()
            except OSError:
                self._drop()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(LockgateError):  # the block's error is the one to report
                self._drop()
        super().__exit__(kind, error, trace)


def _gone(path: Path) -> ConflictError:
    return ConflictError(
        f"{path} is gone, with the data that the task wrote to it; nothing of this attempt is committed; "
        "make sure that nothing else clears its directory, and run the task again"
    )


@dataclass(frozen=True, kw_only=True)
class FileV1Committer(StagingCommitter):
    """Writes into `_temporary/`; takes finished files without copying them."""

    name: str = "file-v1"
    uncommitted: str = "_temporary/<job>/<job attempt>/<task>/<attempt> in the destination"
    use: str = "local disks and NFS: any writer, large files without a copy"
    place: Place = "file systems"
    file_mode: int = 0o666  # the same file becomes visible

    def directory(self, uploads: Uploads) -> Path:
        """Return the attempt's temporary directory."""
        return uploads.temporary_dir


@dataclass(frozen=True, kw_only=True)
class FileV2Committer(FileV1Committer):
    """Publishes files at the task commit."""

    name: str = "file-v2"
    use: str = "comparison, and users who know"
    visible_at: VisibleAt = "task commit"

    def after_task_commit(self, uploads: Uploads) -> None:
        """Publish the task's files."""
        uploads.publish_early(uploads.files)
