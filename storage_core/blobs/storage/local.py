"""The local store of blobs: `<path>/<job id>/<blob key>`, a file each, whole or not there.

What is under way lies in `<path>/.incoming` and is moved into place when it is complete, verified and synced.
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
from lockgate.storage_core.blobs.storage.incoming_file import Heard, IncomingFile, coming_into, drop_abandoned
from lockgate.storage_core.errors import CorruptBlobError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stores.os_errors import after_the_effect, translated

INCOMING: Final = ".incoming"
VERIFIED_AT_MOST: Final = 100_000
"""Files of which it is remembered that they were verified: some 50 MB, whatever number of blobs there are."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO})
"""What opening says of a link, or a socket, where a file is to be."""

Goes = Callable[[Sequence[BlobKey]], Sequence[BlobKey]]
"""Told which blobs of a job a listing has shown, tells which of them are to be deleted."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A blob's file, or object, as a listing finds it."""

    job_id: str
    blob_key: BlobKey
    size_bytes: int


class LocalBlobs(Forkable):
    """A directory of blobs, which the first write makes. Safe to use from several threads and processes.

    Args:
        path: Of the directory.
        is_durable: Whether a blob that was placed outlives the machine's crash; a cache's need not.
        heard: Hears how many bytes of a blob that comes in were written so far.
    """

    def __init__(self, path: Path, *, is_durable: bool = True, heard: Heard = lambda _: None) -> None:
        self.path = path.absolute()
        self._is_durable = is_durable
        self._heard = heard
        self._verified: dict[Path, tuple[int, int, int, int]] = {}
        self.after_fork_in_child()
        FORKS.register(self)
        with translated("open", str(self.path), changes=False):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInputError(f"blob store {self.path} is a file; name a directory")
        self.drop_abandoned()

    def after_fork_in_child(self) -> None:
        """Begin with a lock that nobody holds: the thread that may have held it is not here."""
        self._changing = threading.Lock()

    def path_of(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return where a blob is, or would be.

        Raises:
            InvalidInputError: The job id or the key could leave the directory.
        """
        return self.path / check_blob_job(job_id) / check_blob_key(blob_key)

    def incoming(self) -> AbstractContextManager[IncomingFile]:
        """Hold a file for a blob that comes in; it is gone after the block, unless it was placed.

        Raises:
            AccessDeniedError: The directory cannot be written.
            StoreUnavailableError: The disk is full.
        """
        return coming_into(self.path / INCOMING, self._heard)

    def place(self, incoming: IncomingFile, job_id: str, blob_key: BlobKey, *, is_copy: bool = False) -> Path:
        """Move a complete file to its blob's name; returns the path.

        Args:
            incoming: The file.
            job_id: That the blob belongs to.
            blob_key: Its key.
            is_copy: It can be had again, so it is not synced: what a crash leaves of it has another hash.

        Raises:
            CorruptBlobError: Its bytes are not those that the key names.
        """
        if incoming.digest != digest_of(blob_key):
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key}: {incoming.size_bytes} bytes came in that hash to "
                f"{incoming.digest}; nothing was kept; send them again"
            )
        target = self.path_of(job_id, blob_key)
        is_durable = self._is_durable and not is_copy
        if is_durable:
            incoming.sync()
        FAILPOINTS.hit("blob-place.rename.before")
        with translated("place", str(target), changes=True):
            self._renamed(incoming.path, target)
        with after_the_effect("place", str(target)):
            if is_durable:
                _sync_folder(target.parent)
            self._note_verified(target)
        FAILPOINTS.hit("blob-place.rename.after")
        return target

    def verified(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the path of a blob whose bytes hash to its key; a file is read for that at its first use.

        Raises:
            ObjectNotFoundError: It is not here.
            CorruptBlobError: It is, with other bytes; it was removed.
        """
        path = self.path_of(job_id, blob_key)
        try:
            with translated("read", str(path), changes=False), _opened(path) as file:
                signature = _signature(os.fstat(file.fileno()))
                with self._changing:
                    if self._verified.get(path) == signature:
                        return path
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except ObjectNotFoundError:
            raise ObjectNotFoundError(f"blob {job_id}/{blob_key} is not in {self.path}") from None
        except _NoFileError:
            self.delete(job_id, blob_key)
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.path} was no file: it was damaged, and removed"
            ) from None
        if digest != digest_of(blob_key):
            self._delete_seen(path, signature)
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.path} hashes to {digest}: it was damaged, and removed"
            )
        self._keep_verified(path, signature)
        return path

    def forget_verified(self, job_id: str, blob_key: BlobKey) -> None:
        """Have a blob read again at its next use, for somebody has received other bytes."""
        with self._changing:
            self._verified.pop(self.path_of(job_id, blob_key), None)

    def size_of(self, job_id: str, blob_key: BlobKey) -> int | None:
        """Return how many bytes a blob's file has, None if it is not here."""
        try:
            return self.path_of(job_id, blob_key).lstat().st_size
        except FileNotFoundError:
            return None

    def delete(self, job_id: str, blob_key: BlobKey) -> None:
        """Remove a blob's file, or what is in its place; one that is not there is removed already."""
        path = self.path_of(job_id, blob_key)
        FAILPOINTS.hit("blob-delete.unlink.before")
        with translated("delete", str(path), changes=True):
            _remove(path)
        FAILPOINTS.hit("blob-delete.unlink.after")
        self.forget_verified(job_id, blob_key)

    def delete_job(self, job_id: str) -> None:
        """Remove all blobs of a job, and their folder, as one: nobody else may put any there."""
        folder = self.path / check_blob_job(job_id)
        FAILPOINTS.hit("blob-delete.job.before")
        with translated("delete", str(folder), changes=True):
            _remove_tree(folder)
        FAILPOINTS.hit("blob-delete.job.after")
        with self._changing:
            self._verified = {path: seen for path, seen in self._verified.items() if path.parent != folder}

    def delete_listed(self, job_id: str, goes: Goes) -> None:
        """Remove what a listing of a job's folder shows, and the folder if it is empty then.

        Args:
            job_id: Of the job.
            goes: Asked after the listing; what is no blob goes in any case, but where a link leads to.
        """
        folder = self.path / check_blob_job(job_id)
        with translated("list", str(folder), changes=False), suppress(FileNotFoundError, NotADirectoryError):
            names = [path.name for path in folder.iterdir()]
            blobs = [BlobKey(name) for name in names if is_blob_key(name)]
            for blob_key in goes(blobs):
                self.delete(job_id, blob_key)
            foreign = () if folder.is_symlink() else set(names).difference(blobs)
            for name in foreign:
                _remove(folder / name)
        self.drop_empty(job_id)

    def drop_empty(self, job_id: str) -> None:
        """Remove a job's folder if nothing is in it: a blob that comes in makes it again."""
        folder = self.path / check_blob_job(job_id)
        with suppress(OSError):  # it is not empty, or not there
            folder.rmdir()

    def delete_all(self) -> None:
        """Remove the whole store: a cache's, whose worker stops."""
        with translated("delete", str(self.path), changes=True):
            _remove_tree(self.path)
        with self._changing:
            self._verified.clear()

    def jobs(self) -> Iterator[str]:
        """Yield the ids of all jobs that have a folder."""
        with translated("list", str(self.path), changes=False), suppress(FileNotFoundError):
            with os.scandir(self.path) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            yield from filter(is_blob_job, names)

    def blobs(self, job_id: str) -> Iterator[Found]:
        """Yield the blobs of a job's folder, in no order; foreign files are left out."""
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
                        yield Found(job_id=job_id, blob_key=BlobKey(entry.name), size_bytes=size_bytes)

    def drop_abandoned(self) -> int:
        """Remove what writers that died left under way; returns how many files."""
        return drop_abandoned(self.path / INCOMING)

    def _renamed(self, source: Path, target: Path) -> None:
        """Rename, and make the job's folder again if it was deleted between."""
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
        """Remove a file that was read, unless another has been put in its place meanwhile."""
        with translated("delete", str(path), changes=True), suppress(FileNotFoundError), self._changing:
            if _signature(path.lstat()) == signature:
                path.unlink()
                self._verified.pop(path, None)

    def _note_verified(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            self._keep_verified(path, _signature(path.stat()))

    def _keep_verified(self, path: Path, signature: tuple[int, int, int, int]) -> None:
        """Remember that a file was verified; the one of the longest ago is read again at its next use."""
        with self._changing:
            self._verified.pop(path, None)
            self._verified[path] = signature
            if len(self._verified) > VERIFIED_AT_MOST:
                del self._verified[next(iter(self._verified))]


class _NoFileError(Exception):
    """Something else is where a file is to be."""


def _opened(path: Path) -> FileIO:
    """Open a file for reading; a link is none, wherever it leads.

    Raises:
        _NoFileError: It is no file.
    """
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
    """Remove a file, or what is in its place; what is not there is removed already."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _remove_tree(path)


def _remove_tree(folder: Path) -> None:
    """Remove a folder; whoever removes some of it meanwhile is no hindrance."""
    while folder.is_dir():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """What changes whenever a file is written to."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
