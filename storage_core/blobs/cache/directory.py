"""A cache's folder, shared by processes: what is in it, and what goes.

    blobs/<job id>/<blob key>      the bytes
    held/                          who refers to which of them: see `cache_holds`
    libraries/<job id>/            what was made of a job's blobs, and takes no room
    unpacked/<job id>/<blob key>/  what was unpacked of a blob: see `unpacked`
    owners                         locked by every process that has the cache open

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

from lockgate.storage_core.blobs.cache.extracted import Unpack, UnpackedBlobs, remove_at_once
from lockgate.storage_core.blobs.cache.pins import CachePins, IdleBlob
from lockgate.storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.storage.file_locks import lock_shared, try_alone
from lockgate.storage_core.blobs.storage.local import Found, LocalBlobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    CorruptBlobError,
    LockgateError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stores.os_errors import translated

LOG: Final = logging.getLogger("lockgate.blobs")
LOOKS: Final = 16
"""The limit is looked at whenever this part of it has come in."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

T = TypeVar("T")


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """What an eviction did.

    Attributes:
        blobs: How many were deleted.
        size_bytes: Of these, and of what was unpacked of them.
        kept_bytes: Of all that stayed.
    """

    blobs: int
    size_bytes: int
    kept_bytes: int


@dataclass
class _Survey:
    """What an eviction has come across."""

    idle: list[IdleBlob] = field(default_factory=list)
    kept_bytes: int = 0
    gone: int = 0
    gone_bytes: int = 0

    def went(self, blob: Found) -> None:
        """Count a blob that was deleted."""
        self.gone += 1
        self.gone_bytes += blob.size_bytes
        self.kept_bytes -= blob.size_bytes


class CacheFolder(Forkable):
    """The folder of a cache, shared by processes and threads.

    The first process that opens it reads what a killed one had in use, drops what is damaged, and stages the
    rest; a fork has its own references.

    Args:
        path: Of the folder, which the first use makes.
        limit_bytes: Unreferenced blobs leave the cache beyond this, the longest unreferenced first.
        interval_s: A blob stays so long after its last reference.
        clock: The machine's by default.
    """

    def __init__(
        self, path: Path, *, limit_bytes: int, interval_s: float, clock: Clock | None = None
    ) -> None:
        self.path = path.absolute()
        self.local = LocalBlobs(self.path / "blobs", is_durable=False)
        self._clock = clock or SystemClock()
        self._holds = CachePins(self.path / "held", self._clock)
        self._unpacked = UnpackedBlobs(self.path / "unpacked")
        self._limit_bytes = limit_bytes
        self._interval_s = interval_s
        self._begin()
        self._owner = self._enter()
        FORKS.register(self)

    @contextmanager
    def holding(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Refer to a blob, and so to its job's folder, until the block ends; it need not be here yet."""
        with self._holds.holding(check_blob_job(job_id), check_blob_key(blob_key)):
            yield
        if self._is_over:
            self.evict()

    def fetching(self, job_id: str, blob_key: BlobKey) -> AbstractContextManager[None]:
        """Be the only one, over threads and processes, that fetches a blob, until the block ends."""
        return self._holds.fetching(job_id, blob_key)

    def references(self, job_id: str, blob_key: BlobKey | None = None) -> int:
        """Return how many references this process has to a blob, or to all of a job."""
        return self._holds.count(job_id, blob_key)

    def libraries(self, job_id: str) -> Path:
        """Return the folder for what is made of a job's blobs; it goes with them."""
        return self.path / "libraries" / check_blob_job(job_id)

    def unpacked(self, job_id: str, blob_key: BlobKey, unpack: Unpack) -> Path:
        """Return the folder with what was unpacked of a blob that is held, which goes with the blob.

        Args:
            job_id: That the blob belongs to.
            blob_key: Its key.
            unpack: Unpacks it, once a machine.

        Raises:
            StoreUnavailableError: The disk is full.
        """
        files = self._unpacked.files(job_id, blob_key)

        def fill() -> int:
            with translated("unpack", str(files), changes=True):
                return self._unpacked.fill(job_id, blob_key, unpack)

        if not files.is_dir():
            with self.fetching(job_id, blob_key):
                size_bytes = 0 if files.is_dir() else self.in_spite_of_a_full_disk(fill)
            self.came_in(size_bytes)
        return files

    def in_spite_of_a_full_disk(self, work: Callable[[], T]) -> T:
        """Do what takes room; once more if the disk was full, and something idle could go."""
        try:
            return work()
        except StoreUnavailableError as error:
            if not is_full(error) or not self.evict(make_room=True).blobs:
                raise
        return work()

    def came_in(self, size_bytes: int) -> None:
        """Count bytes that came in, and make room when that is due."""
        with self._changing:
            self._room_bytes -= size_bytes
            is_due = self._room_bytes < 0
        if is_due:
            self.evict()

    def evict(self, *, make_room: bool = False) -> Evicted:
        """Delete what nobody has referred to for an interval, then what is idle beyond the limit.

        Args:
            make_room: Delete all that is idle, for the disk is full.
        """
        with translated("evict", str(self.path), changes=True):
            survey = _Survey()
            for job_id in self._jobs():
                self._evict_expired(job_id, survey)
            limit_bytes = 0 if make_room else self._limit_bytes
            for one in sorted(survey.idle, key=lambda one: one.since_s):
                if survey.kept_bytes <= limit_bytes:
                    break
                if self._drop(one):
                    survey.went(one.blob)
        self._note_room(survey.kept_bytes)
        return Evicted(blobs=survey.gone, size_bytes=survey.gone_bytes, kept_bytes=survey.kept_bytes)

    def close(self, *, is_kept: bool = False) -> None:
        """End this process's references, and delete the folder if no other process has it open.

        Args:
            is_kept: Leave the folder to the next process, which may be a task tried again.
        """
        self._holds.let_go()
        if is_kept and not self._owner.closed:
            self.evict()
        self._owner.close()
        if not is_kept:
            self._delete()

    def after_fork_in_child(self) -> None:
        """Leave the parent's references to the parent, and be an owner in one's own right."""
        self._begin()
        self._holds.after_fork_in_child()
        was_closed = self._owner.closed
        self._owner.close()
        if not was_closed:
            self._owner = lock_shared(self._owners)

    def _begin(self) -> None:
        self._changing = threading.Lock()
        self._room_bytes = self._limit_bytes // LOOKS
        self._is_over = False

    @property
    def _owners(self) -> Path:
        return self.path / "owners"

    def _enter(self) -> FileIO:
        with translated("open", str(self.path), changes=True):
            alone = try_alone(self._owners)
            if alone is not None:
                with alone:
                    self._take_over()
            return lock_shared(self._owners)

    def _take_over(self) -> None:
        """Verify and stage what a killed process had in use; the rest is verified at its first use."""
        now_s = self._clock.now_s()
        jobs = self._jobs()
        for folder in (self.path / "libraries", self._unpacked.path):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name not in jobs or self._holds.was_in_use(path.name):
                    remove_at_once(path)
        for job_id in jobs:
            for blob in self.local.blobs(job_id):
                if self._holds.was_in_use(job_id, blob.blob_key) and self._is_whole(blob):
                    self._holds.idle([blob], now_s)

    def _is_whole(self, blob: Found) -> bool:
        try:
            self.local.verified(blob.job_id, blob.blob_key)
        except (CorruptBlobError, ObjectNotFoundError) as error:
            LOG.warning("cache %s: %s", self.path, error)
            return False
        return True

    def _jobs(self) -> list[str]:
        """Return the ids of all jobs that have anything here."""
        return sorted(self._holds.jobs() | set(self.local.jobs()))

    def _blobs(self, job_id: str) -> list[Found]:
        """Return what is here of a job's blobs, each with the room that it takes: its bytes, and unpacked."""
        sizes = {blob.blob_key: blob.size_bytes for blob in self.local.blobs(job_id)}
        for blob_key, size_bytes in self._unpacked.sizes(job_id):
            sizes[blob_key] = sizes.get(blob_key, 0) + size_bytes
        return [Found(job_id=job_id, blob_key=key, size_bytes=size) for key, size in sizes.items()]

    def _evict_expired(self, job_id: str, survey: _Survey) -> None:
        now_s = self._clock.now_s()
        found = self._blobs(job_id)
        survey.kept_bytes += sum(blob.size_bytes for blob in found)
        idle = self._holds.idle(found, now_s)
        expired = [one for one in idle if self._is_expired(one, now_s)]
        if len(expired) == len(found) and self._drop_job(job_id, now_s):
            for blob in found:
                survey.went(blob)
            return
        for one in idle:
            if one in expired and self._drop(one):
                survey.went(one.blob)
            else:
                survey.idle.append(one)

    def _is_expired(self, idle: IdleBlob, now_s: float) -> bool:
        return idle.since_s <= now_s - self._interval_s

    def _drop(self, idle: IdleBlob) -> bool:
        """Delete a blob if nobody has referred to it meanwhile."""
        job_id, blob_key = idle.blob.job_id, idle.blob.blob_key
        with self._holds.alone(idle) as is_idle:
            if is_idle:
                FAILPOINTS.hit("blob-evict.delete.before")
                self._unpacked.drop(job_id, blob_key)
                self.local.delete(job_id, blob_key)
                FAILPOINTS.hit("blob-evict.delete.after")
                self._holds.forget(job_id, blob_key)
        return is_idle

    def _drop_job(self, job_id: str, now_s: float) -> bool:
        """Delete a job's folder as one, if nobody has referred to it meanwhile."""
        with self._holds.alone_with(job_id) as is_alone:
            if not is_alone:
                return False
            idle = self._holds.idle(self._blobs(job_id), now_s)
            if not all(self._is_expired(one, now_s) for one in idle):
                return False
            FAILPOINTS.hit("blob-evict.delete-job.before")
            remove_at_once(self.libraries(job_id))
            self._unpacked.drop_job(job_id)
            self.local.delete_job(job_id)
            FAILPOINTS.hit("blob-evict.delete-job.after")
            self._holds.forget_job(job_id)
        return True

    def _note_room(self, kept_bytes: int) -> None:
        step_bytes = self._limit_bytes // LOOKS
        room_bytes = self._limit_bytes - kept_bytes
        if room_bytes < 0 and not self._is_over:
            LOG.warning(
                "cache %s: %d bytes are referred to, more than its limit of %d; they are kept; raise "
                "LOCKGATE_BLOB_CACHE_BYTES, or run fewer jobs at once",
                self.path,
                kept_bytes,
                self._limit_bytes,
            )
        with self._changing:
            self._is_over = room_bytes < 0
            self._room_bytes = step_bytes if self._is_over else min(room_bytes, step_bytes)

    def _delete(self) -> None:
        """Delete the folder, unless another process has it open."""
        alone = try_alone(self._owners) if self.path.exists() else None
        if alone is None:
            return
        with alone, translated("delete", str(self.path), changes=True):
            self.local.delete_all()
            shutil.rmtree(self.path / "libraries", ignore_errors=True)
            shutil.rmtree(self._unpacked.path, ignore_errors=True)
            shutil.rmtree(self._holds.path, ignore_errors=True)
            self._owners.unlink(missing_ok=True)
            with suppress(OSError):  # somebody has just begun another one
                self.path.rmdir()


def is_full(error: LockgateError) -> bool:
    """Tell whether it was this machine's disk that failed, and no source."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL
