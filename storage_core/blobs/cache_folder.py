"""A cache's folder: which of its blobs are referred to, and which go.

    blobs/<job id>/<blob key>      the bytes
    held/<job id>/<blob key>       locked by every process that refers to the blob; dated since when none does
    held/<job id>/job              locked by every process that refers to any blob of the job
    libraries/<job id>/            what was made of a job's blobs, and takes no room
    unpacked/<job id>/<blob key>/  what was unpacked of a blob: see `unpacked`
    owners                         locked by every process that has the cache open

Several processes share the folder. A lock ends with its process, so no count survives a killed one, and
nobody has to count it down.

Source: Flink BLOB storage, "BLOB Lifecycle", "Staged Cleanup".
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from storage_core.blobs.file_locks import lock_alone, lock_shared, try_alone
from storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key
from storage_core.blobs.local import Found, LocalBlobs
from storage_core.blobs.unpacked import Unpack, UnpackedBlobs, remove_at_once
from storage_core.clock import Clock, SystemClock
from storage_core.errors import CorruptBlobError, LockgateError, ObjectNotFoundError, StoreUnavailableError
from storage_core.failpoints import FAILPOINTS
from storage_core.journal.forks import FORKS, Forkable
from storage_core.stores.local_errors import translated

LOG: Final = logging.getLogger("lockgate.blobs")
JOB: Final = "job"
"""Name of the lock of a whole job: no blob's key."""
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
class _Hold:
    """References of this process to a blob, or to any of a job's."""

    file: FileIO
    count: int = 0


@dataclass(frozen=True)
class _Idle:
    """A blob that no process referred to, and since when."""

    blob: Found
    since_s: float


@dataclass
class _Survey:
    """What an eviction has come across."""

    idle: list[_Idle] = field(default_factory=list)
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

    _holds: dict[tuple[str, str], _Hold]

    def __init__(
        self, path: Path, *, limit_bytes: int, interval_s: float, clock: Clock | None = None
    ) -> None:
        self.path = path.absolute()
        self.local = LocalBlobs(self.path / "blobs", is_durable=False)
        self._unpacked = UnpackedBlobs(self.path / "unpacked")
        self._limit_bytes = limit_bytes
        self._interval_s = interval_s
        self._clock = clock or SystemClock()
        self._begin()
        self._owner = self._enter()
        FORKS.tell(self)

    @contextmanager
    def holding(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Refer to a blob, and so to its job's folder, until the block ends; it need not be here yet."""
        with self._holding(check_blob_job(job_id), JOB), self._holding(job_id, check_blob_key(blob_key)):
            yield
        if self._is_over:
            self.evict()

    @contextmanager
    def fetching(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Be the only one, over threads and processes, that fetches a blob."""
        with translated("lock", str(self.path), changes=False):
            alone = lock_alone(self._lock_of(job_id, f"{blob_key}.fetch"))
        with alone:
            yield

    def references(self, job_id: str, blob_key: BlobKey | None = None) -> int:
        """Return how many references this process has to a blob, or to all of a job."""
        with self._changing:
            hold = self._holds.get((job_id, blob_key or JOB))
            return 0 if hold is None else hold.count

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
        with self._changing:
            holds, self._holds = self._holds, {}
        for hold in holds.values():
            hold.file.close()
        if is_kept and not self._owner.closed:
            self.evict()
        self._owner.close()
        if not is_kept:
            self._delete()

    def forked(self) -> None:
        """Leave the parent's references to the parent, and be an owner in one's own right."""
        inherited, owner = self._holds, self._owner
        self._begin()
        for hold in inherited.values():
            hold.file.close()  # the parent's descriptor keeps the lock
        owner_was_closed = owner.closed
        owner.close()
        if not owner_was_closed:
            self._owner = lock_shared(self._owners)

    def _begin(self) -> None:
        self._changing = threading.Lock()
        self._holds = {}
        self._room_bytes = self._limit_bytes // LOOKS
        self._is_over = False

    @property
    def _owners(self) -> Path:
        return self.path / "owners"

    def _lock_of(self, job_id: str, name: str) -> Path:
        return self.path / "held" / job_id / name

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
                if path.name not in jobs or _was_in_use(self._lock_of(path.name, JOB)):
                    remove_at_once(path)
        for job_id in jobs:
            for blob in self.local.blobs(job_id):
                if _was_in_use(self._lock_of(job_id, blob.blob_key)) and self._is_whole(blob):
                    self._idle([blob], now_s)

    def _is_whole(self, blob: Found) -> bool:
        try:
            self.local.verified(blob.job_id, blob.blob_key)
        except (CorruptBlobError, ObjectNotFoundError) as error:
            LOG.warning("cache %s: %s", self.path, error)
            return False
        return True

    @contextmanager
    def _holding(self, job_id: str, name: str) -> Iterator[None]:
        holds = self._holds
        self._hold(job_id, name)
        try:
            yield
        finally:
            if holds is self._holds:  # not in a fork, nor after the end: there is nothing held then
                self._release(job_id, name)

    def _hold(self, job_id: str, name: str) -> None:
        with self._changing, translated("hold", str(self.path), changes=False):
            hold = self._holds.get((job_id, name))
            if hold is None:
                hold = self._holds[job_id, name] = _Hold(lock_shared(self._lock_of(job_id, name)))
                _stamp(hold.file, 0.0)
            hold.count += 1

    def _release(self, job_id: str, name: str) -> None:
        with self._changing:
            hold = self._holds[job_id, name]
            hold.count -= 1
            if hold.count == 0:
                del self._holds[job_id, name]
                with hold.file:
                    _stamp(hold.file, self._clock.now_s())

    def _jobs(self) -> list[str]:
        """Return the ids of all jobs that have anything here."""
        held = self.path / "held"
        names = {path.name for path in held.iterdir()} if held.is_dir() else set()
        return sorted(names | set(self.local.jobs()))

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
        idle = self._idle(found, now_s)
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

    def _is_expired(self, idle: _Idle, now_s: float) -> bool:
        return idle.since_s <= now_s - self._interval_s

    def _idle(self, found: list[Found], now_s: float) -> list[_Idle]:
        """Return those that nobody refers to, staged now if they were not."""
        idle = []
        for blob in found:
            lock = self._lock_of(blob.job_id, blob.blob_key)
            is_new = not lock.exists()
            alone = try_alone(lock)
            if alone is None:
                continue
            with alone:
                if is_new or _stamped(alone) == 0.0:
                    _stamp(alone, now_s)
                idle.append(_Idle(blob, _stamped(alone)))
        return idle

    def _drop(self, idle: _Idle) -> bool:
        """Delete a blob if nobody has referred to it meanwhile."""
        job_id, blob_key = idle.blob.job_id, idle.blob.blob_key
        lock = self._lock_of(job_id, blob_key)
        alone = try_alone(lock)
        if alone is None:
            return False
        with alone:
            if _stamped(alone) != idle.since_s:
                return False
            FAILPOINTS.hit("blob-evict.delete.before")
            self._unpacked.drop(job_id, blob_key)
            self.local.delete(job_id, blob_key)
            FAILPOINTS.hit("blob-evict.delete.after")
            self._lock_of(job_id, f"{blob_key}.fetch").unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
        return True

    def _drop_job(self, job_id: str, now_s: float) -> bool:
        """Delete a job's folder as one, if nobody has referred to it meanwhile."""
        alone = try_alone(self._lock_of(job_id, JOB))
        if alone is None:
            return False
        with alone:
            found = self._blobs(job_id)
            if not all(self._is_expired(one, now_s) for one in self._idle(found, now_s)):
                return False
            FAILPOINTS.hit("blob-evict.delete-job.before")
            remove_at_once(self.libraries(job_id))
            self._unpacked.drop_job(job_id)
            self.local.delete_job(job_id)
            FAILPOINTS.hit("blob-evict.delete-job.after")
            self._drop_locks(job_id)
        return True

    def _drop_locks(self, job_id: str) -> None:
        """Remove the locks of a job that is held alone, its own last: whoever makes it anew makes others."""
        folder = self.path / "held" / job_id
        for path in folder.iterdir():
            if path.name != JOB:
                path.unlink(missing_ok=True)
        self._lock_of(job_id, JOB).unlink(missing_ok=True)
        with suppress(OSError):  # somebody has just begun another one
            folder.rmdir()

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
            shutil.rmtree(self.path / "held", ignore_errors=True)
            self._owners.unlink(missing_ok=True)
            with suppress(OSError):  # somebody has just begun another one
                self.path.rmdir()


def _stamp(file: FileIO, since_s: float) -> None:
    """Note since when nobody refers to a blob; 0: somebody does. Takes no room on a full disk."""
    os.utime(file.fileno(), (since_s, since_s))


def _stamped(file: FileIO) -> float:
    """Return since when nobody refers to a blob; 0: somebody does, or died before saying so."""
    return os.fstat(file.fileno()).st_mtime


def is_full(error: LockgateError) -> bool:
    """Tell whether it was this machine's disk that failed, and no source."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL


def _was_in_use(lock: Path) -> bool:
    """Tell whether the last process that held a lock died with it, or none ever had it."""
    try:
        return lock.stat().st_mtime == 0.0
    except FileNotFoundError:
        return True
