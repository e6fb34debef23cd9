"""The local store of blobs: one complete file, `<path>/<job id>/<blob key>`, for each blob.

A blob being received lies in `<path>/.incoming`; it is verified and synced before it is moved into place.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.blobs.keys import (
    BlobKey,
    check_blob_job,
    check_blob_key,
    digest_of,
    is_blob_job,
    is_blob_key,
)
from lockgate.storage_core.blobs.storage.incoming_file import (
    IncomingFile,
    OnWrite,
    create_incoming,
    delete_abandoned,
)
from lockgate.storage_core.errors import CorruptBlobError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stores.os_errors import after_the_effect, translated

INCOMING: Final = ".incoming"
MAX_VERIFIED: Final = 100_000
"""Number of files remembered as verified: some 50 MB of memory."""
_PIECE_BYTES: Final = 1024 * 1024
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO})
"""Errors of opening a link or a socket."""

SelectBlobs = Callable[[Sequence[BlobKey]], Sequence[BlobKey]]
"""Return which of a job's listed blobs are to be deleted."""


class ListedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob's file or object, from a listing."""

    job_id: str
    blob_key: BlobKey
    size_bytes: int


class LocalBlobs(Forkable):
    """A directory of blobs, created by the first write. Safe to use from several threads and processes.

    Args:
        path: Path of the directory.
        is_durable: Whether blobs survive a crash of the machine; a cache does not need it.
        on_bytes: Called with the number of bytes of a blob written, or read to verify it, so far.
    """

    def __init__(self, path: Path, *, is_durable: bool = True, on_bytes: OnWrite = lambda _: None) -> None:
        self.path = path.absolute()
        self._is_durable = is_durable
        self._on_bytes = on_bytes
        self._verified: dict[Path, tuple[int, int, int, int]] = {}
        self.after_fork_in_child()
        FORKS.register(self)
        with translated("open", str(self.path), changes=False):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInputError(f"blob store {self.path} is a file; name a directory")
        self.delete_abandoned()

    def after_fork_in_child(self) -> None:
        """Create a new lock: the child does not have the thread that may hold the old one."""
        self._changing = threading.Lock()

    def path_of(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the path of a blob's file.

        Raises:
            InvalidInputError: The job id or the key could leave the directory.
        """
        return self.path / check_blob_job(job_id) / check_blob_key(blob_key)

    def incoming(self) -> AbstractContextManager[IncomingFile]:
        """Create a file for a blob being received; see `create_incoming`."""
        return create_incoming(self.path / INCOMING, self._on_bytes)

    def place(self, incoming: IncomingFile, job_id: str, blob_key: BlobKey, *, is_copy: bool = False) -> Path:
        """Move a complete file to its blob's path; return the path.

        A copy of another is not synced: its hash reveals damage by a crash.

        Raises:
            CorruptBlobError: Its bytes do not have the key's hash.
        """
        if incoming.digest != digest_of(blob_key):
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key}: the {incoming.size_bytes} bytes received hash to "
                f"{incoming.digest}; nothing was kept; send them again"
            )
        target = self.path_of(job_id, blob_key)
        is_durable = self._is_durable and not is_copy
        if is_durable:
            incoming.sync()
        FAILPOINTS.hit("blob-place.rename.before")
        with translated("place", str(target), changes=True):
            self._rename(incoming.path, target)
        with after_the_effect("place", str(target)):
            if is_durable:
                _sync_folder(target.parent)
            self._note_verified(target)
        FAILPOINTS.hit("blob-place.rename.after")
        return target

    def verified(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the path of a blob's file; its bytes are verified at its first use.

        Raises:
            ObjectNotFoundError: It is not here.
            CorruptBlobError: The file had other bytes, and was deleted.
        """
        path = self.path_of(job_id, blob_key)
        try:
            with translated("read", str(path), changes=False), _open(path) as file:
                signature = _signature(os.fstat(file.fileno()))
                with self._changing:
                    if self._verified.get(path) == signature:
                        return path
                digest = _digest(file, self._on_bytes)
        except ObjectNotFoundError:
            raise ObjectNotFoundError(f"blob {job_id}/{blob_key} is not in {self.path}") from None
        except _NoFileError:
            self.delete(job_id, blob_key)
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.path} was not a file: it was damaged, and removed"
            ) from None
        if digest != digest_of(blob_key):
            self._delete_seen(path, signature)
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.path} hashes to {digest}: it was damaged, and removed"
            )
        self._keep_verified(path, signature)
        return path

    def forget_verified(self, job_id: str, blob_key: BlobKey) -> None:
        """Verify a blob again at its next use, because a reader received other bytes."""
        with self._changing:
            self._verified.pop(self.path_of(job_id, blob_key), None)

    def size_of(self, job_id: str, blob_key: BlobKey) -> int | None:
        """Return the size of a blob's file, None if it does not exist."""
        try:
            return self.path_of(job_id, blob_key).lstat().st_size
        except FileNotFoundError:
            return None

    def delete(self, job_id: str, blob_key: BlobKey) -> None:
        """Delete a blob's file, or whatever has its path, if it exists."""
        path = self.path_of(job_id, blob_key)
        FAILPOINTS.hit("blob-delete.unlink.before")
        with translated("delete", str(path), changes=True):
            _remove(path)
        FAILPOINTS.hit("blob-delete.unlink.after")
        self.forget_verified(job_id, blob_key)

    def delete_job(self, job_id: str) -> None:
        """Delete a job's folder with all its blobs; no other process may put blobs there."""
        folder = self.path / check_blob_job(job_id)
        FAILPOINTS.hit("blob-delete.job.before")
        with translated("delete", str(folder), changes=True):
            _remove_tree(folder)
        FAILPOINTS.hit("blob-delete.job.after")
        with self._changing:
            self._verified = {
                path: signature for path, signature in self._verified.items() if path.parent != folder
            }

    def delete_listed(self, job_id: str, select: SelectBlobs) -> None:
        """Delete the blobs of a job that `select` chooses, foreign files, and the folder if it is empty."""
        folder = self.path / check_blob_job(job_id)
        with translated("list", str(folder), changes=False), suppress(FileNotFoundError, NotADirectoryError):
            names = [path.name for path in folder.iterdir()]
            blobs = [BlobKey(name) for name in names if is_blob_key(name)]
            for blob_key in select(blobs):
                self.delete(job_id, blob_key)
            foreign = () if folder.is_symlink() else set(names).difference(blobs)
            for name in foreign:
                _remove(folder / name)
        self.drop_empty(job_id)

    def drop_empty(self, job_id: str) -> None:
        """Delete a job's folder if it is empty; the next blob creates it again."""
        folder = self.path / check_blob_job(job_id)
        with suppress(OSError):  # not empty, or not there
            folder.rmdir()

    def delete_all(self) -> None:
        """Delete the whole store: the cache of a worker that stops."""
        with translated("delete", str(self.path), changes=True):
            _remove_tree(self.path)
        with self._changing:
            self._verified.clear()

    def jobs(self) -> Iterator[str]:
        """Yield the ids of all jobs with a folder."""
        with translated("list", str(self.path), changes=False), suppress(FileNotFoundError):
            with os.scandir(self.path) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            yield from filter(is_blob_job, names)

    def blobs(self, job_id: str) -> Iterator[ListedBlob]:
        """Yield the blobs of a job's folder, unordered; foreign files are left out."""
        folder = self.path / check_blob_job(job_id)
        with (
            translated("list", str(folder), changes=False),
            suppress(FileNotFoundError),
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                if is_blob_key(entry.name):
                    with suppress(FileNotFoundError):
                        size_bytes = entry.stat(follow_symlinks=False).st_size
                        yield ListedBlob(job_id=job_id, blob_key=BlobKey(entry.name), size_bytes=size_bytes)

    def delete_abandoned(self) -> int:
        """Delete incoming files of writers that died; return how many."""
        return delete_abandoned(self.path / INCOMING)

    def _rename(self, source: Path, target: Path) -> None:
        """Rename a file; create the job's folder again if it is deleted meanwhile."""
        while True:
            if not target.parent.is_dir():
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _sync_folder(self.path)
            try:
                os.rename(source, target)  # noqa: PTH104 - Path.rename is the same, with another name for errors
            except FileNotFoundError:
                if not source.exists():
                    raise
                continue
            return

    def _delete_seen(self, path: Path, signature: tuple[int, int, int, int]) -> None:
        """Delete a file that was read, unless it has been replaced."""
        with translated("delete", str(path), changes=True), suppress(FileNotFoundError), self._changing:
            if _signature(path.lstat()) == signature:
                path.unlink()
                self._verified.pop(path, None)

    def _note_verified(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            self._keep_verified(path, _signature(path.stat()))

    def _keep_verified(self, path: Path, signature: tuple[int, int, int, int]) -> None:
        """Remember that a file was verified, and forget the oldest one if there are too many."""
        with self._changing:
            self._verified.pop(path, None)
            self._verified[path] = signature
            if len(self._verified) > MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]


class _NoFileError(Exception):
    """The path names something other than a file."""


def _digest(file: FileIO, on_bytes: OnWrite) -> str:
    digest, size_bytes = hashlib.sha256(), 0
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
        size_bytes += len(piece)
        on_bytes(size_bytes)
    return digest.hexdigest()


def _open(path: Path) -> FileIO:
    """Open a file for reading; raise _NoFileError if it is none, such as a link."""
    try:
        opened = os.open(path, _READ)
    except OSError as fault:
        if fault.errno in _NO_FILE:
            raise _NoFileError from None
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _NoFileError
    return FileIO(opened, "rb")


def _remove(path: Path) -> None:
    """Delete a file, or whatever has its path, if it exists."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _remove_tree(path)


def _remove_tree(folder: Path) -> None:
    """Delete a folder; other processes may delete files in it at the same time."""
    while folder.is_dir():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return values that change whenever a file is written."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
