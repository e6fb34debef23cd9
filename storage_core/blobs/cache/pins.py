"""Pins of cached blobs: lock files that show which blobs are in use, and since when the others are not.

    <job id>/<blob key>        locked by each process that uses the blob; its mtime is the end of the last use
    <job id>/<blob key>.fetch  locked by the process that fetches the blob
    <job id>/job               locked by each process that uses any blob of the job

Several processes share a cache. A lock ends with its process, so a killed one leaves no count behind.

Source: Flink BLOB storage, "BLOB Lifecycle".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.storage.local import ListedBlob
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.file_locks import lock_exclusive, lock_shared, touch, try_lock_exclusive
from lockgate.storage_core.stores.os_errors import translated

AHEAD_S: Final = 3_600.0
"""A last use this far ahead of the clock is not believed."""

FETCH_WAIT_S: Final = 300.0
"""Maximum time for which a fetch by another thread or process may write nothing."""

JOB: Final = "job"
"""Name of the lock of a whole job, which is no blob key."""


@dataclass(frozen=True)
class IdleBlob:
    """A blob that no process uses, and the end of its last use."""

    blob: ListedBlob
    since_s: float


@dataclass
class _Pin:
    """Uses of a blob, or of any blob of a job, by this process."""

    file: FileIO
    count: int = 0


class CachePins:
    """Pins of this process, and queries about those of all processes. Thread-safe."""

    _pins: dict[tuple[str, str], _Pin]

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._reset()

    @contextmanager
    def pinned(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Pin a blob and its job until the block ends; the blob need not exist yet."""
        with self._pinned(job_id, JOB), self._pinned(job_id, blob_key):
            yield

    @contextmanager
    def fetching(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Lock a blob against fetching by other threads and processes until the block ends.

        Raises:
            StoreUnavailableError: Another one fetches it, and has written nothing for `FETCH_WAIT_S`.
        """
        with translated("lock", str(self.path), changes=False):
            lock = lock_exclusive(self._fetch_lock_of(job_id, blob_key), limit_s=FETCH_WAIT_S)
        fetches, thread = self._fetches, threading.get_ident()
        fetches[thread] = lock
        try:
            with lock:
                yield
        finally:
            fetches.pop(thread, None)

    def show_progress(self) -> None:
        """Show those who wait for this thread's fetch that it makes progress; others may hang."""
        lock = self._fetches.get(threading.get_ident())
        if lock is not None:
            touch(lock)

    def jobs(self) -> set[str]:
        """Return the ids of the jobs with lock files."""
        return {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()

    def was_in_use(self, job_id: str, blob_key: BlobKey | None = None) -> bool:
        """Return whether the last process to use a blob or job was killed meanwhile, or none has used it."""
        try:
            return self._lock_of(job_id, blob_key or JOB).stat().st_mtime == 0.0
        except FileNotFoundError:
            return True

    def idle(self, found: Sequence[ListedBlob], now_s: float) -> list[IdleBlob]:
        """Return the blobs that no process uses. One of unknown last use counts as used until now.

        So does one whose last use lies far ahead: the clock was set back since.
        """
        idle = []
        for blob in found:
            path = self._lock_of(blob.job_id, blob.blob_key)
            is_new = not path.exists()
            lock = try_lock_exclusive(path)
            if lock is None:
                continue
            with lock:
                if is_new or not 0.0 < _last_use_s(lock) <= now_s + AHEAD_S:
                    _set_last_use(lock, now_s)
                idle.append(IdleBlob(blob, _last_use_s(lock)))
        return idle

    @contextmanager
    def exclusive(self, idle: IdleBlob) -> Iterator[bool]:
        """Keep others from pinning a blob until the block ends; yields whether it was idle all the time."""
        lock = try_lock_exclusive(self._lock_of(idle.blob.job_id, idle.blob.blob_key))
        with lock or nullcontext():
            yield lock is not None and _last_use_s(lock) == idle.since_s

    @contextmanager
    def exclusive_job(self, job_id: str) -> Iterator[bool]:
        """Keep others from pinning any blob of a job until the block ends; yields whether none is pinned."""
        lock = try_lock_exclusive(self._lock_of(job_id, JOB))
        with lock or nullcontext():
            yield lock is not None

    def forget(self, job_id: str, blob_key: BlobKey) -> None:
        """Remove the lock files of a blob that the caller has locked exclusively."""
        self._fetch_lock_of(job_id, blob_key).unlink(missing_ok=True)
        self._lock_of(job_id, blob_key).unlink(missing_ok=True)

    def forget_job(self, job_id: str) -> None:
        """Remove the lock files of a job that the caller has locked exclusively; the job's own comes last."""
        folder = self.path / job_id
        for path in folder.iterdir():
            if path.name != JOB:
                path.unlink(missing_ok=True)
        self._lock_of(job_id, JOB).unlink(missing_ok=True)
        with suppress(OSError):  # another process has just created a file in it
            folder.rmdir()

    def release_all(self) -> None:
        """Release all pins without the time of their end, as the death of the process does."""
        with self._lock:
            pins, self._pins = self._pins, {}
        for pin in pins.values():
            pin.file.close()

    def after_fork_in_child(self) -> None:
        """Start without pins; the parent's descriptors keep the parent's locks."""
        inherited = self._pins
        self._reset()
        for pin in inherited.values():
            pin.file.close()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pins = {}
        self._fetches: dict[int, FileIO] = {}

    def _lock_of(self, job_id: str, name: str) -> Path:
        return self.path / job_id / name

    def _fetch_lock_of(self, job_id: str, blob_key: BlobKey) -> Path:
        return self._lock_of(job_id, f"{blob_key}.fetch")

    @contextmanager
    def _pinned(self, job_id: str, name: str) -> Iterator[None]:
        pins = self._pins
        self._pin(job_id, name)
        try:
            yield
        finally:
            if pins is self._pins:  # else released already, or this is a fork
                self._release(job_id, name)

    def _pin(self, job_id: str, name: str) -> None:
        with self._lock, translated("lock", str(self.path), changes=False):
            pin = self._pins.get((job_id, name))
            if pin is None:
                pin = self._pins[job_id, name] = _Pin(lock_shared(self._lock_of(job_id, name)))
                _set_last_use(pin.file, 0.0)
            pin.count += 1

    def _release(self, job_id: str, name: str) -> None:
        with self._lock:
            pin = self._pins[job_id, name]
            pin.count -= 1
            if pin.count == 0:
                del self._pins[job_id, name]
                with pin.file:
                    _set_last_use(pin.file, self._clock.now_s())


def _set_last_use(file: FileIO, ended_s: float) -> None:
    """Store the end of the last use in a lock file; 0: in use. Needs no space on a full disk."""
    os.utime(file.fileno(), (ended_s, ended_s))


def _last_use_s(file: FileIO) -> float:
    """Return the end of the last use; 0: in use, or the process that used it was killed."""
    return os.fstat(file.fileno()).st_mtime
