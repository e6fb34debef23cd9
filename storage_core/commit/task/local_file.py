"""A finished local file that becomes a pending upload: linked where it can be, else copied."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.uploads.parquet_footer import statistics_of_file
from lockgate.storage_core.commit.uploads.pending_file_writer import PendingFileWriter
from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    InvalidInputError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.file_tree import FileTree


@dataclass(frozen=True)
class LocalFile:
    """A finished file, open for reading, and its size when it was opened."""

    path: Path
    source: FileIO
    size: int

    def check_size(self, size: int) -> None:
        """Raise `ConflictError` if another number of bytes was taken in."""
        _check_size(self.path, size, self.size)

    def copy_to(self, writer: PendingFileWriter, *, with_sha256: bool) -> None:
        """Write the file into an upload, part by part."""
        sha256 = hashlib.sha256()
        # One byte more than there should be, to notice that the file grows.
        while chunk := self.source.read(min(writer.room_bytes, max(0, self.size - writer.tell()) + 1)):
            if with_sha256:
                sha256.update(chunk)
            writer.write(chunk)
        writer.sha256 = sha256.hexdigest() if with_sha256 else None
        self.check_size(writer.tell())

    def adopted_by(
        self, store: object, key: str, path: str, *, rows: int | None, with_sha256: bool
    ) -> PendingFile | None:
        """Take the file into the store without a copy; return None if it must be copied."""
        if not isinstance(store, FileTree):
            return None
        try:
            with step("task-write"):
                upload = store.adopt_file(self.path, key, new_token())
        except (UnsupportedStoreError, AccessDeniedError):
            return None
        # The upload has the file's inode and time: a write after the link reverts the job.
        sha256 = hashlib.file_digest(self.source, "sha256").hexdigest() if with_sha256 else None
        found = statistics_of_file(self.path, path) if path.endswith(".parquet") else None
        statistics = {} if found is None else found[1]
        rows = found[0] if rows is None and found is not None else rows
        return PendingFile(path=path, upload=upload, rows=rows, sha256=sha256, statistics=statistics)


@contextmanager
def opened(path: Path, expected_size: int | None) -> Iterator[LocalFile]:
    """Open a finished file.

    Raises:
        ConflictError: It has another size than expected.
        InvalidInputError: It cannot be opened, or is a symbolic link.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInputError(
            f"staged file {path} cannot be opened ({error.strerror}); "
            "the staging directory must be one that workers see"
        ) from None
    with os.fdopen(descriptor, "rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        if expected_size is not None:
            _check_size(path, size, expected_size)
        yield LocalFile(path, source, size)


def _check_size(path: Path, size: int, expected: int) -> None:
    if size != expected:
        raise ConflictError(
            f"staged file {path} has {size} bytes, not the {expected} of the frozen listing; "
            "nothing of it is committed; write the stage again"
        )
