"""A worker's cache of blobs: from its own folder, else from the HA store, else from the server.

Whatever it hands out hashes to its key, and stays where it is while somebody refers to it.

Source: Flink BLOB storage, "BlobCache Download".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self

from lockgate.storage_core.blobs.cache.directory import CacheFolder, Evicted, is_full
from lockgate.storage_core.blobs.keys import BlobKey, digest_of
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.blobs.registry.rows import Guarantee
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
"""For so long an HA store that gave no answer is not asked again: each blob would wait for it."""

Fill = Callable[[LocalBlobs, str, BlobKey], Path]
"""Copies a blob to a local store, verified; returns its path there."""


class BlobCache:
    """Blobs as files of this machine. Safe to use from several threads, processes and forks.

    Use it as a context manager, or `close` it.

    Args:
        path: Of its folder, shared by all processes of a machine that name it.
        ha: Read only; None: there is none.
        origin: The blob server.
        limit_bytes: Unreferenced blobs leave the cache beyond this.
        interval_s: A blob stays so long after its last reference.
        is_kept: Leave the folder when the last process has closed it: a task that is tried again finds it.
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
        """The blobs that are here."""
        return self.folder.local

    @contextmanager
    def holding(self, job_id: str, blob_key: BlobKey, *, guarantee: Guarantee = "ha") -> Iterator[Path]:
        """Refer to a blob, and hold the path of its verified file, until the block ends.

        Args:
            job_id: That it belongs to.
            blob_key: Its key.
            guarantee: That it was put with; of a re-creatable one the HA store is not asked.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
            StoreUnavailableError: It is not here, and nobody who may have it answers; or the disk is full.
            AccessDeniedError: The server does not let this process have it.
        """
        with self.folder.holding(job_id, blob_key):
            yield self._file(job_id, blob_key, guarantee)

    def get(self, job_id: str, blob_key: BlobKey, *, guarantee: Guarantee = "ha") -> bytes:
        """Return a blob's bytes, for one that fits in memory; arguments and errors as for `holding`.

        A file that was damaged without a trace since it was verified is fetched again.
        """
        with self.folder.holding(job_id, blob_key):
            data = self._data(job_id, blob_key, guarantee)
            if data is None:
                self.local.forget_verified(job_id, blob_key)
                data = self._data(job_id, blob_key, guarantee)
        if data is None:
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.folder.path} reads otherwise than when it was verified, "
                "twice; nothing was handed out; see to this machine's disk and memory"
            )
        return data

    def evict(self) -> Evicted:
        """Delete what nobody has referred to for an interval, and what is idle beyond the limit."""
        return self.folder.evict()

    def close(self) -> None:
        """End all references of this process; the last one that closes the cache deletes it, unless kept."""
        self.folder.close(is_kept=self._is_kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _data(self, job_id: str, blob_key: BlobKey, guarantee: Guarantee) -> bytes | None:
        """Return a blob's bytes, None if what is read is not them, or is not there any more."""
        path = self._file(job_id, blob_key, guarantee)
        try:
            with translated("read", str(path), changes=False):
                data = path.read_bytes()
        except ObjectNotFoundError:  # another process has found it damaged
            return None
        return data if hashlib.sha256(data).hexdigest() == digest_of(blob_key) else None

    def _file(self, job_id: str, blob_key: BlobKey, guarantee: Guarantee) -> Path:
        """Return the path of a verified file; its blob is referred to, and so stays."""
        try:
            return self.local.verified(job_id, blob_key)
        except (ObjectNotFoundError, CorruptBlobError):
            pass
        with self.folder.fetching(job_id, blob_key):
            try:
                return self.local.verified(job_id, blob_key)  # another has fetched it meanwhile
            except (ObjectNotFoundError, CorruptBlobError) as error:
                fault = error
            fetch = partial(self._fetched, job_id, blob_key, guarantee, fault)
            path = self.folder.in_spite_of_a_full_disk(fetch)
        self.folder.came_in(path.stat().st_size)
        return path

    def _fetched(self, job_id: str, blob_key: BlobKey, guarantee: Guarantee, fault: LockgateError) -> Path:
        """Return the path of a blob that came from elsewhere.

        Args:
            job_id: That it belongs to.
            blob_key: Its key.
            guarantee: That it was put with.
            fault: Why it is not here.
        """
        faults = {"cache": fault}
        for name, fill in self._sources(guarantee):
            try:
                return fill(self.local, job_id, blob_key)
            except LockgateError as error:
                if is_full(error):
                    raise
                if name == "HA store" and not isinstance(error, ObjectNotFoundError | CorruptBlobError):
                    self._ha_rests_until_s = self._clock.now_s() + REST_S
                faults[name] = error
        raise _unfound(job_id, blob_key, self._with_ha_unasked(faults, guarantee))

    def _sources(
        self, guarantee: Guarantee
    ) -> Iterator[tuple[str, Callable[[LocalBlobs, str, BlobKey], Path]]]:
        if self._ha is not None and guarantee == "ha" and self._clock.now_s() >= self._ha_rests_until_s:
            yield "HA store", self._ha.fill
        yield "server", self.origin.fetch

    def _with_ha_unasked(
        self, faults: dict[str, LockgateError], guarantee: Guarantee
    ) -> dict[str, LockgateError | str]:
        """Add why the HA store was not asked, if it was not."""
        if self._ha is None:
            why = "there is none"
        elif guarantee != "ha":
            why = "it has no re-creatable blobs"
        else:
            why = f"it gave no answer less than {REST_S:g} s ago"
        return {"cache": faults["cache"], "HA store": faults.get("HA store", why), "server": faults["server"]}


def _unfound(job_id: str, blob_key: BlobKey, faults: dict[str, LockgateError | str]) -> LockgateError:
    """Return the error that tells what each of the three has said."""
    kind: type[LockgateError] = StoreUnavailableError
    remedy = "try again when they answer"
    if any(isinstance(faults[name], CorruptBlobError) for name in ("HA store", "server")):
        kind, remedy = CorruptBlobError, "upload it again, or compute it again"
    elif isinstance(faults["server"], ObjectNotFoundError):
        kind, remedy = ObjectNotFoundError, "it was deleted, or never put; upload it again"
    elif isinstance(faults["server"], AccessDeniedError):
        kind, remedy = AccessDeniedError, "give this process the token of its job"
    told = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
    return kind(f"blob {job_id}/{blob_key} cannot be had; {told}; nothing was handed out; {remedy}")
