"""Directory of a cache, shared by processes, and the eviction of its blobs.

    blobs/<job id>/<blob key>      the bytes
    pins/                          see `pins`
    libraries/<job id>/            links to the blobs of a job
    unpacked/<job id>/<blob key>/  unpacked archives, see `extracted`
    owners                         locked by each process that has the cache open

Source: Flink BLOB storage, "BLOB Lifecycle", "Staged Cleanup".
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from lockgate.storage_core.blobs.cache.extracted import Unpack, UnpackedBlobs, remove_atomically
from lockgate.storage_core.blobs.cache.pins import CachePins, IdleBlob
from lockgate.storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.storage.local import ListedBlob, LocalBlobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    CorruptBlobError,
    LockgateError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.file_locks import lock_shared, touch, try_lock_exclusive
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stores.os_errors import translated

LOG: Final = logging.getLogger("lockgate.blobs")
CHECKS: Final = 16
"""The size is checked each time that the limit divided by this was added."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

T = TypeVar("T")


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an eviction.

    Attributes:
        blobs: Number of deleted blobs.
        size_bytes: Size of these and of their unpacked files.
        kept_bytes: Size of all others.
    """

    blobs: int
    size_bytes: int
    kept_bytes: int


@dataclass
class _Survey:
    """Blobs seen and deleted during an eviction."""

    idle: list[IdleBlob] = field(default_factory=list)
    kept_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0

    def count_deleted(self, blob: ListedBlob) -> None:
        self.deleted += 1
        self.deleted_bytes += blob.size_bytes
        self.kept_bytes -= blob.size_bytes


class CacheFolder(Forkable):
    """Directory of a cache, shared by processes and threads. A fork has its own pins.

    The first process to open it verifies blobs that killed processes had in use, and deletes damaged ones.
    """

    def __init__(
        self, path: Path, *, limit_bytes: int, interval_s: float, clock: Clock | None = None
    ) -> None:
        self.path = path.absolute()
        self._clock = clock or SystemClock()
        self._pins = CachePins(self.path / "pins", self._clock)
        self._recovering: FileIO | None = None
        self.local = LocalBlobs(self.path / "blobs", is_durable=False, on_bytes=self._show_progress)
        self._unpacked = UnpackedBlobs(self.path / "unpacked")
        self._limit_bytes = limit_bytes
        self._interval_s = interval_s
        self._reset()
        self._owner = self._open()
        FORKS.register(self)

    @contextmanager
    def pinned(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Pin a blob and the folder of its job until the block ends; the blob need not be cached yet."""
        with self._pins.pinned(check_blob_job(job_id), check_blob_key(blob_key)):
            yield
        if self._is_over:
            self.evict()

    def fetching(self, job_id: str, blob_key: BlobKey) -> AbstractContextManager[None]:
        """Lock a blob against fetching by other threads and processes until the block ends."""
        return self._pins.fetching(job_id, blob_key)

    def libraries(self, job_id: str) -> Path:
        """Return the folder for links to a job's blobs, which is deleted with them."""
        return self.path / "libraries" / check_blob_job(job_id)

    def unpacked(self, job_id: str, blob_key: BlobKey, unpack: Unpack) -> Path:
        """Return the folder with the unpacked files of a pinned blob, which is deleted with the blob.

        Raises:
            StoreUnavailableError: The disk is full.
        """
        files = self._unpacked.files(job_id, blob_key)

        def fill() -> int:
            with translated("unpack", str(files), changes=True):
                return self._unpacked.fill(job_id, blob_key, unpack)

        if not files.is_dir():
            with self.fetching(job_id, blob_key):
                size_bytes = 0 if files.is_dir() else self.with_room(fill)
            self.count_added(size_bytes)
        return files

    def with_room(self, work: Callable[[], T]) -> T:
        """Do work that needs disk space; if the disk is full, evict idle blobs and do it once more."""
        try:
            return work()
        except StoreUnavailableError as error:
            if not is_disk_full(error) or not self.evict(make_room=True).blobs:
                raise
        return work()

    def count_added(self, size_bytes: int) -> None:
        """Count added bytes, and evict blobs when a check is due."""
        with self._lock:
            self._room_bytes -= size_bytes
            is_due = self._room_bytes < 0
        if is_due:
            self.evict()

    def evict(self, *, make_room: bool = False) -> Evicted:
        """Delete blobs idle for an interval, then those above the limit; all idle ones to make room."""
        with translated("evict", str(self.path), changes=True):
            survey = _Survey()
            for job_id in self._jobs():
                self._evict_expired(job_id, survey)
            limit_bytes = 0 if make_room else self._limit_bytes
            for idle in sorted(survey.idle, key=lambda idle: idle.since_s):
                if survey.kept_bytes <= limit_bytes:
                    break
                if self._drop(idle):
                    survey.count_deleted(idle.blob)
        self._note_room(survey.kept_bytes)
        return Evicted(blobs=survey.deleted, size_bytes=survey.deleted_bytes, kept_bytes=survey.kept_bytes)

    def close(self, *, is_kept: bool = False) -> None:
        """Release this process's pins; delete the directory if it is not kept, and open nowhere else."""
        self._pins.release_all()
        if is_kept and not self._owner.closed:
            self.evict()
        self._owner.close()
        if not is_kept:
            self._delete()

    def after_fork_in_child(self) -> None:
        """Start without pins, and lock the directory for this process too."""
        self._reset()
        self._pins.after_fork_in_child()
        was_closed = self._owner.closed
        self._owner.close()
        if not was_closed:
            self._owner = lock_shared(self._owners)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._room_bytes = self._limit_bytes // CHECKS
        self._is_over = False

    @property
    def _owners(self) -> Path:
        return self.path / "owners"

    def _open(self) -> FileIO:
        with translated("open", str(self.path), changes=True):
            lock = try_lock_exclusive(self._owners)
            if lock is not None:
                with lock:
                    touch(lock)  # a new holder is progress
                    self._recovering = lock
                    try:
                        self._recover(lock)
                    finally:
                        self._recovering = None
            return lock_shared(self._owners)

    def _recover(self, lock: FileIO) -> None:
        """Verify the blobs that a killed process had in use; others are verified at their first use."""
        now_s = self._clock.now_s()
        jobs = self._jobs()
        for folder in (self.path / "libraries", self._unpacked.path):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name not in jobs or self._pins.was_in_use(path.name):
                    remove_atomically(path)
        for job_id in jobs:
            for blob in self.local.blobs(job_id):
                touch(lock)  # others wait for it
                if self._pins.was_in_use(job_id, blob.blob_key) and self._is_whole(blob):
                    self._pins.idle([blob], now_s)

    def _show_progress(self, _: int) -> None:
        """Show those who wait for this process's locks that it reads or writes a blob."""
        self._pins.show_progress()
        if self._recovering is not None:
            touch(self._recovering)

    def _is_whole(self, blob: ListedBlob) -> bool:
        try:
            self.local.verified(blob.job_id, blob.blob_key)
        except (CorruptBlobError, ObjectNotFoundError) as error:
            LOG.warning("cache %s: %s", self.path, error)
            return False
        return True

    def _jobs(self) -> list[str]:
        """Return the ids of all jobs with pins or blobs."""
        return sorted(self._pins.jobs() | set(self.local.jobs()))

    def _blobs(self, job_id: str) -> list[ListedBlob]:
        """Return the cached blobs of a job, each with the size of its bytes and its unpacked files."""
        sizes = {blob.blob_key: blob.size_bytes for blob in self.local.blobs(job_id)}
        for blob_key, size_bytes in self._unpacked.sizes(job_id):
            sizes[blob_key] = sizes.get(blob_key, 0) + size_bytes
        return [ListedBlob(job_id=job_id, blob_key=key, size_bytes=size) for key, size in sizes.items()]

    def _evict_expired(self, job_id: str, survey: _Survey) -> None:
        now_s = self._clock.now_s()
        found = self._blobs(job_id)
        survey.kept_bytes += sum(blob.size_bytes for blob in found)
        idle = self._pins.idle(found, now_s)
        expired = [blob for blob in idle if self._is_expired(blob, now_s)]
        if len(expired) == len(found) and self._drop_job(job_id, now_s):
            for blob in found:
                survey.count_deleted(blob)
            return
        for candidate in idle:
            if candidate in expired and self._drop(candidate):
                survey.count_deleted(candidate.blob)
            else:
                survey.idle.append(candidate)

    def _is_expired(self, idle: IdleBlob, now_s: float) -> bool:
        return idle.since_s <= now_s - self._interval_s

    def _drop(self, idle: IdleBlob) -> bool:
        """Delete a blob unless it was used meanwhile."""
        job_id, blob_key = idle.blob.job_id, idle.blob.blob_key
        with self._pins.exclusive(idle) as is_idle:
            if is_idle:
                FAILPOINTS.hit("blob-evict.delete.before")
                self._unpacked.drop(job_id, blob_key)
                self.local.delete(job_id, blob_key)
                FAILPOINTS.hit("blob-evict.delete.after")
                self._pins.forget(job_id, blob_key)
        return is_idle

    def _drop_job(self, job_id: str, now_s: float) -> bool:
        """Delete the folder of a job unless a blob of it was used meanwhile."""
        with self._pins.exclusive_job(job_id) as is_idle:
            if not is_idle:
                return False
            idle = self._pins.idle(self._blobs(job_id), now_s)
            if not all(self._is_expired(blob, now_s) for blob in idle):
                return False
            FAILPOINTS.hit("blob-evict.delete-job.before")
            remove_atomically(self.libraries(job_id))
            self._unpacked.drop_job(job_id)
            self.local.delete_job(job_id)
            FAILPOINTS.hit("blob-evict.delete-job.after")
            self._pins.forget_job(job_id)
        return True

    def _note_room(self, kept_bytes: int) -> None:
        step_bytes = self._limit_bytes // CHECKS
        room_bytes = self._limit_bytes - kept_bytes
        if room_bytes < 0 and not self._is_over:
            LOG.warning(
                "cache %s: %d bytes are in use, more than its limit of %d; they are kept; raise "
                "LOCKGATE_BLOB_CACHE_BYTES, or run fewer jobs at once",
                self.path,
                kept_bytes,
                self._limit_bytes,
            )
        with self._lock:
            self._is_over = room_bytes < 0
            self._room_bytes = step_bytes if self._is_over else min(room_bytes, step_bytes)

    def _delete(self) -> None:
        """Delete the directory unless another process has it open."""
        lock = try_lock_exclusive(self._owners) if self.path.exists() else None
        if lock is None:
            return
        with lock, translated("delete", str(self.path), changes=True):
            self.local.delete_all()
            shutil.rmtree(self.path / "libraries", ignore_errors=True)
            shutil.rmtree(self._unpacked.path, ignore_errors=True)
            shutil.rmtree(self._pins.path, ignore_errors=True)
            self._owners.unlink(missing_ok=True)
            with suppress(OSError):  # another process has just created a file in it
                self.path.rmdir()


def is_disk_full(error: LockgateError) -> bool:
    """Return whether this machine's disk is full, as opposed to a failure of a source."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL
