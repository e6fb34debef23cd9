"""Which blobs of a cache are referred to, and since when the others are not.

    <job id>/<blob key>        locked by every process that refers to the blob; dated since when none does
    <job id>/<blob key>.fetch  locked by the one that fetches it
    <job id>/job               locked by every process that refers to any blob of the job

Several processes share a cache. A lock ends with its process, so no count survives a killed one, and nobody
has to count it down.

Source: Flink BLOB storage, "BLOB Lifecycle".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.storage.file_locks import lock_exclusive, lock_shared, try_lock_exclusive
from lockgate.storage_core.blobs.storage.local import ListedBlob
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.stores.os_errors import translated

JOB: Final = "job"
"""Name of the lock of a whole job: no blob's key."""


@dataclass(frozen=True)
class IdleBlob:
    """A blob that no process referred to, and since when."""

    blob: ListedBlob
    since_s: float


@dataclass
class _Hold:
    """References of this process to a blob, or to any of a job's."""

    file: FileIO
    count: int = 0


class CachePins:
    """The references of this process to a cache's blobs, and what the others' locks tell. Thread-safe.

    Args:
        path: Of the folder with the locks, which the first use makes.
        clock: Dates the end of a blob's last reference.
    """

    _held: dict[tuple[str, str], _Hold]

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._begin()

    @contextmanager
    def holding(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Refer to a blob, and so to its job, until the block ends; it need not be there yet."""
        with self._holding(job_id, JOB), self._holding(job_id, blob_key):
            yield

    @contextmanager
    def fetching(self, job_id: str, blob_key: BlobKey) -> Iterator[None]:
        """Be the only one, over threads and processes, that fetches a blob."""
        with translated("lock", str(self.path), changes=False):
            alone = lock_exclusive(self._fetch_lock_of(job_id, blob_key))
        with alone:
            yield

    def count(self, job_id: str, blob_key: BlobKey | None = None) -> int:
        """Return how many references this process has to a blob, or to all of a job."""
        with self._changing:
            hold = self._held.get((job_id, blob_key or JOB))
            return 0 if hold is None else hold.count

    def jobs(self) -> set[str]:
        """Return the ids of the jobs that anybody has referred to."""
        return {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()

    def was_in_use(self, job_id: str, blob_key: BlobKey | None = None) -> bool:
        """Tell of a blob, or a job, whether the last process that held it died with it, or none ever did."""
        try:
            return self._lock_of(job_id, blob_key or JOB).stat().st_mtime == 0.0
        except FileNotFoundError:
            return True

    def idle(self, found: Sequence[ListedBlob], now_s: float) -> list[IdleBlob]:
        """Return those that nobody refers to, each since when; from now, if nobody knew of it."""
        idle = []
        for blob in found:
            lock = self._lock_of(blob.job_id, blob.blob_key)
            is_new = not lock.exists()
            alone = try_lock_exclusive(lock)
            if alone is None:
                continue
            with alone:
                if is_new or _stamped(alone) == 0.0:
                    _stamp(alone, now_s)
                idle.append(IdleBlob(blob, _stamped(alone)))
        return idle

    @contextmanager
    def alone(self, idle: IdleBlob) -> Iterator[bool]:
        """Let nobody refer to a blob until the block ends; yields whether nobody has done so meanwhile."""
        held = try_lock_exclusive(self._lock_of(idle.blob.job_id, idle.blob.blob_key))
        if held is None:
            yield False
            return
        with held:
            yield _stamped(held) == idle.since_s

    @contextmanager
    def alone_with(self, job_id: str) -> Iterator[bool]:
        """Let nobody refer to any blob of a job until the block ends; yields whether nobody does."""
        held = try_lock_exclusive(self._lock_of(job_id, JOB))
        if held is None:
            yield False
            return
        with held:
            yield True

    def forget(self, job_id: str, blob_key: BlobKey) -> None:
        """Remove the locks of a blob that is held alone."""
        self._fetch_lock_of(job_id, blob_key).unlink(missing_ok=True)
        self._lock_of(job_id, blob_key).unlink(missing_ok=True)

    def forget_job(self, job_id: str) -> None:
        """Remove the locks of a job that is held alone, its own last: whoever makes it anew makes others."""
        folder = self.path / job_id
        for path in folder.iterdir():
            if path.name != JOB:
                path.unlink(missing_ok=True)
        self._lock_of(job_id, JOB).unlink(missing_ok=True)
        with suppress(OSError):  # somebody has just begun another one
            folder.rmdir()

    def let_go(self) -> None:
        """End all references of this process, as its death does: they are not dated."""
        with self._changing:
            held, self._held = self._held, {}
        for hold in held.values():
            hold.file.close()

    def after_fork_in_child(self) -> None:
        """Begin with none: the parent's references are the parent's, whose descriptors keep the locks."""
        inherited = self._held
        self._begin()
        for hold in inherited.values():
            hold.file.close()

    def _begin(self) -> None:
        self._changing = threading.Lock()
        self._held = {}

    def _lock_of(self, job_id: str, name: str) -> Path:
        return self.path / job_id / name

    def _fetch_lock_of(self, job_id: str, blob_key: BlobKey) -> Path:
        return self._lock_of(job_id, f"{blob_key}.fetch")

    @contextmanager
    def _holding(self, job_id: str, name: str) -> Iterator[None]:
        held = self._held
        self._hold(job_id, name)
        try:
            yield
        finally:
            if held is self._held:  # not in a fork, nor after the end: there is nothing held then
                self._release(job_id, name)

    def _hold(self, job_id: str, name: str) -> None:
        with self._changing, translated("hold", str(self.path), changes=False):
            hold = self._held.get((job_id, name))
            if hold is None:
                hold = self._held[job_id, name] = _Hold(lock_shared(self._lock_of(job_id, name)))
                _stamp(hold.file, 0.0)
            hold.count += 1

    def _release(self, job_id: str, name: str) -> None:
        with self._changing:
            hold = self._held[job_id, name]
            hold.count -= 1
            if hold.count == 0:
                del self._held[job_id, name]
                with hold.file:
                    _stamp(hold.file, self._clock.now_s())


def _stamp(file: FileIO, since_s: float) -> None:
    """Note since when nobody refers to a blob; 0: somebody does. Takes no room on a full disk."""
    os.utime(file.fileno(), (since_s, since_s))


def _stamped(file: FileIO) -> float:
    """Return since when nobody refers to a blob; 0: somebody does, or died before saying so."""
    return os.fstat(file.fileno()).st_mtime
