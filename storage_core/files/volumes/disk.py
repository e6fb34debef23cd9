"""The calls by which a volume changes its directory: the one place where tests inject faults."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Of Linux; Python has no function for it."""
_BEGIN_WRITING: Final = 2
"""`SYNC_FILE_RANGE_WRITE`."""
_NO_LINKS: Final = frozenset({errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})


class Disk:
    """The operating system's calls; each one may fail with `OSError`."""

    def write(self, file: int, position: int, *pieces: bytes | memoryview) -> None:
        """Write all bytes at a position, without joining the pieces."""
        written = os.pwritev(file, pieces, position)
        if written < sum(map(len, pieces)):
            rest = memoryview(b"".join(pieces))
            while rest := rest[written:]:
                position += written
                written = os.pwrite(file, rest, position)

    def truncate(self, file: int, length_bytes: int) -> None:
        """Cut a file."""
        os.ftruncate(file, length_bytes)

    def begin_sync(self, file: int, position: int, size: int) -> None:
        """Let the system begin to write these bytes to its device, so that the next sync waits for less.

        Makes nothing durable; an error of the device is reported by that sync.
        """
        if _sync_file_range is not None:
            _sync_file_range(file, ctypes.c_int64(position), ctypes.c_int64(size), _BEGIN_WRITING)

    def sync(self, file: int) -> None:
        """Make a file or a directory durable."""
        os.fsync(file)

    def sync_data(self, file: int) -> None:
        """Make the bytes of a file durable, and its length if it has grown."""
        os.fdatasync(file)

    def link(self, source: Path, path: Path) -> None:
        """Give a file a second name, or rename it where links are lacking, unless the name is taken.

        There, of two processes that take the same name at the same time the last one has it.

        Raises:
            FileExistsError: The name is another file's.
        """
        try:
            path.hardlink_to(source)
        except FileExistsError:
            if not path.samefile(source):  # else it is the second answer to a request that NFS has repeated
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            source.rename(path)

    def rename(self, source: Path, path: Path) -> None:
        """Rename a file or a directory."""
        source.rename(path)

    def unlink(self, path: str | Path, folder: int | None = None) -> None:
        """Delete a file, if it is there; with a folder that is open, by its path in that one."""
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=folder)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it, or what is left of it."""
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, folder: Path) -> None:
        """Make the names in a directory durable."""
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(opened)
        finally:
            os.close(opened)
