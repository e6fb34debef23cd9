"""The calls by which a volume changes its directory: the one place where tests inject faults."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_statfs: Final = getattr(ctypes.CDLL(None), "statfs", None)
"""Python has no function for it that returns the type of a file system."""
_STATFS_BYTES: Final = 512
"""More than its structure has; of Linux the type is the first field."""
_NFS: Final = 0x6969
_TICK_S: Final = 0.002
"""Pause between two looks at the time of a directory, whose server ticks."""
_TICKS: Final = 1500
"""How often the time of a directory is looked at: for 3 s, where a file system notes whole seconds."""
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

    def discard(self, path: str | Path, folder: int | None = None) -> None:
        """Delete a log as `unlink` does; its room is free at once, even if a writer has it open."""
        try:
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
        except OSError:  # it is gone, or another user's
            self.unlink(path, folder)
            return
        try:
            self.unlink(path, folder)
            if not os.fstat(file).st_nlink:  # else a backup has it
                self.truncate(file, 0)
        finally:
            os.close(file)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it, or what is left of it."""
        shutil.rmtree(path, ignore_errors=True)

    def open_by_name(self, folder: str, name: str, mode: int) -> int:
        """Open a file by its name as it is now: a client of NFS asks for names once their folder was opened.

        It does so if the change attribute of the folder is another one; see `outdate`.
        """
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return os.open(name, mode | os.O_CLOEXEC)

    def outdate(self, folder: Path) -> None:
        """Let no client of NFS, this one included, use what it has cached of a directory and its files.

        The change attribute of many servers is the time of the last change, by a clock that ticks each 1 to
        10 ms: two changes within a tick look like one, and a name or a page that was cached between them
        would stay valid for good.
        """
        if not self.is_nfs(folder):
            return
        before = self.changed_ns(folder)
        for _ in range(_TICKS):
            os.utime(folder)
            if self.changed_ns(folder) != before:
                break
            time.sleep(_TICK_S)
        else:
            raise OSError(errno.ETIMEDOUT, "the server does not note the times of changes of directories")
        for path in folder.iterdir():
            with suppress(OSError):  # another process has deleted it, or is about to make it
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)

    def is_nfs(self, path: Path) -> bool:
        """Return whether a path is on a mount of NFS."""
        found = ctypes.create_string_buffer(_STATFS_BYTES)
        if _statfs is None or _statfs(os.fsencode(path), found):
            return False
        return ctypes.c_long.from_buffer(found).value == _NFS

    def changed_ns(self, folder: Path) -> int:
        """Return when a directory was changed last; a client of NFS asks its server if it is opened."""
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return os.fstat(opened).st_ctime_ns
        finally:
            os.close(opened)

    def sync_directory(self, folder: Path) -> None:
        """Make the names in a directory durable."""
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(opened)
        finally:
            os.close(opened)
