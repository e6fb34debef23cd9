"""A worker's cache of blobs: read from its directory, else from the HA store, else from the server.

The hash of every returned file matches its key, and the file stays in place while a process refers to it.

Source: Flink BLOB storage, "BlobCache Download".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self

from lockgate.storage_core.blobs.blob_protocol import Blobs
from lockgate.storage_core.blobs.cache.directory import CacheFolder, Evicted, is_disk_full
from lockgate.storage_core.blobs.keys import BlobKey, digest_of
from lockgate.storage_core.blobs.registry.blob_rows import Guarantee
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    AccessDeniedError,
    CorruptBlobError,
    LockgateError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.stores.os_errors import translated

REST_S: Final = 30.0
"""Time for which an HA store that did not respond is skipped, because each blob would wait for it."""

Fill = Callable[[LocalBlobs, str, BlobKey], Path]
"""Copies a blob to a local store, verifies it, and returns its path there."""


class BlobCache:
    """Blobs as files of this machine. Safe to use from several threads, processes and forks.

    Use it as a context manager, or `close` it.

    Args:
        path: Directory of the cache, shared by all processes of a machine that name it.
        ha: HA store, which is only read; None: there is none.
        origin: Blob server.
        limit_bytes: Size above which unreferenced blobs are deleted.
        interval_s: Time for which a blob is kept after its last reference.
        is_kept: Keep the directory when the last process closes it, for the retry of a task.
        clock: The machine's by default.
    """

    def __init__(
        self,
        path: Path,
        ha: HaBlobs | None,
        origin: Blobs,
        *,
        limit_bytes: int,
        interval_s: float,
        is_kept: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.folder = CacheFolder(path, limit_bytes=limit_bytes, interval_s=interval_s, clock=self._clock)
        self.origin = origin
        self._ha = ha
        self._ha_rests_until_s = 0.0
        self._is_kept = is_kept

    @property
    def local(self) -> LocalBlobs:
        """Local store of the cached blobs."""
        return self.folder.local

    @contextmanager
    def pinned(self, job_id: str, blob_key: BlobKey, *, guarantee: Guarantee = "ha") -> Iterator[Path]:
        """Pin a blob until the block ends; yields the path of its verified file.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
            StoreUnavailableError: No source that may have it responds, or the disk is full.
            AccessDeniedError: The server denies this process the blob.
        """
        with self.folder.pinned(job_id, blob_key):
            yield self._verified_file(job_id, blob_key, guarantee)

    def get(self, job_id: str, blob_key: BlobKey, *, guarantee: Guarantee = "ha") -> bytes:
        """Return the bytes of a blob that fits in memory; arguments and errors as for `pinned`.

        Fetches the blob again if its file was silently damaged since it was verified.
        """
        with self.folder.pinned(job_id, blob_key):
            data = self._read(job_id, blob_key, guarantee)
            if data is None:
                self.local.forget_verified(job_id, blob_key)
                data = self._read(job_id, blob_key, guarantee)
        if data is None:
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.folder.path} was read twice with other bytes than when "
                "it was verified; nothing was returned; check this machine's disk and memory"
            )
        return data

    def evict(self) -> Evicted:
        """Delete blobs without a reference for an interval, and idle ones above the limit."""
        return self.folder.evict()

    def close(self) -> None:
        """End all references of this process; the last process deletes the directory unless `is_kept`."""
        self.folder.close(is_kept=self._is_kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, job_id: str, blob_key: BlobKey, guarantee: Guarantee) -> bytes | None:
        """Return the bytes of a blob, None if its file is damaged or was deleted since it was verified."""
        path = self._verified_file(job_id, blob_key, guarantee)
        try:
            with translated("read", str(path), changes=False):
                data = path.read_bytes()
        except ObjectNotFoundError:  # another process found it damaged
            return None
        return data if hashlib.sha256(data).hexdigest() == digest_of(blob_key) else None

    def _verified_file(self, job_id: str, blob_key: BlobKey, guarantee: Guarantee) -> Path:
        """Return the path of the verified file of a pinned blob, fetched if necessary."""
        try:
            return self.local.verified(job_id, blob_key)
        except (ObjectNotFoundError, CorruptBlobError):
            pass
        with self.folder.fetching(job_id, blob_key):
            try:
                return self.local.verified(job_id, blob_key)  # another process fetched it meanwhile
            except (ObjectNotFoundError, CorruptBlobError) as error:
                fault = error
            path = self.folder.with_room(partial(self._fetch, job_id, blob_key, guarantee, fault))
        self.folder.count_added(path.stat().st_size)
        return path

    def _fetch(self, job_id: str, blob_key: BlobKey, guarantee: Guarantee, fault: LockgateError) -> Path:
        """Fetch a blob from the HA store or the server; `fault` is the reason why it is not cached."""
        faults: dict[str, LockgateError] = {}
        for name, fill in self._sources(guarantee):
            try:
                return fill(self.local, job_id, blob_key)
            except LockgateError as error:
                if is_disk_full(error):
                    raise
                if name == "HA store" and not isinstance(error, ObjectNotFoundError | CorruptBlobError):
                    self._ha_rests_until_s = self._clock.now_s() + REST_S
                faults[name] = error
        if self._ha is None:
            skipped = "there is none"
        elif guarantee != "ha":
            skipped = "it has no re-creatable blobs"
        else:
            skipped = f"it did not respond less than {REST_S:g} s ago"
        raise _unavailable(job_id, blob_key, {"cache": fault, "HA store": skipped, **faults})

    def _sources(self, guarantee: Guarantee) -> Iterator[tuple[str, Fill]]:
        rests_s = self._ha_rests_until_s - self._clock.now_s()  # more than `REST_S`: the clock was set back
        if self._ha is not None and guarantee == "ha" and not 0.0 < rests_s <= REST_S:
            yield "HA store", self._ha.fill
        yield "server", self.origin.fetch


def _unavailable(job_id: str, blob_key: BlobKey, faults: Mapping[str, LockgateError | str]) -> LockgateError:
    """Return the error that combines those of cache, HA store and server."""
    kind: type[LockgateError] = StoreUnavailableError
    remedy = "try again when they respond"
    if any(isinstance(faults[name], CorruptBlobError) for name in ("HA store", "server")):
        kind, remedy = CorruptBlobError, "upload it or compute it again"
    elif isinstance(faults["server"], ObjectNotFoundError):
        kind, remedy = ObjectNotFoundError, "it was deleted, or never put; upload it again"
    elif isinstance(faults["server"], AccessDeniedError):
        kind, remedy = AccessDeniedError, "give this process the token of its job"
    reasons = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
    return kind(f"blob {job_id}/{blob_key} is not available; {reasons}; nothing was returned; {remedy}")
