"""Read blobs from the local store, verified, or refill them from the HA store.

Concurrent readers share one refill. Works while the journal is unreachable.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from lockgate.storage_core.blobs.keys import BlobKey, digest_of
from lockgate.storage_core.blobs.registry.blob_rows import Blob
from lockgate.storage_core.blobs.registry.references import is_ended
from lockgate.storage_core.blobs.sources import CHUNK
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import CorruptBlobError, LockgateError, ObjectNotFoundError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stores.os_errors import translated

T = TypeVar("T")


class SingleFlight(Forkable, Generic[T]):
    """Share one call among concurrent callers with the same key. Results are not kept afterwards."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Forget the parent's calls: the child has no threads for them."""
        self._changing = threading.Lock()
        self._flights: dict[Hashable, Future[T]] = {}

    def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do some work, or wait for the thread that is doing it; return its result or raise its error."""
        own: Future[T] = Future()
        flights = self._flights
        with self._changing:
            flight = flights.setdefault(key, own)
        if flight is own:
            try:
                own.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised below, here and in the threads that wait
                own.set_exception(error)
            finally:
                del flights[key]
        return flight.result()


class BlobReader:
    """Reads the blobs of a server."""

    def __init__(self, stores: BlobStores) -> None:
        self._stores = stores
        self._local = stores.local
        self._refills = SingleFlight[Path]()

    def path(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the path of a blob's verified file; a missing one is copied from the HA store.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
        """
        damaged: CorruptBlobError | None = None
        try:
            return self._local.verified(job_id, blob_key)
        except CorruptBlobError as error:
            damaged = error
        except ObjectNotFoundError:
            pass
        try:
            if self._stores.ha is not None:
                refill = partial(self._refill, self._stores.ha, job_id, blob_key)
                return self._refills.do((job_id, blob_key), refill)
        except ObjectNotFoundError:
            pass
        if damaged is not None:
            raise damaged
        raise ObjectNotFoundError(
            f"blob {job_id}/{blob_key}: neither the local store nor the HA store has it; "
            "it was deleted, or never put"
        )

    def recheck(self, job_id: str, blob_key: BlobKey) -> None:
        """Verify a blob's file again, and heal it, after a reader received other bytes; raises as `path`."""
        self._local.forget_verified(job_id, blob_key)
        self.path(job_id, blob_key)

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to another local store; see `Blobs.fetch`."""
        path = self.path(job_id, blob_key)
        try:
            return _copy(path, local, job_id, blob_key)
        except CorruptBlobError:  # damaged since it was verified
            self._local.forget_verified(job_id, blob_key)
            return _copy(self.path(job_id, blob_key), local, job_id, blob_key)

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return a blob's bytes; see `Blobs.get`."""
        for _ in range(2):
            data = _read(self.path(job_id, blob_key))
            if hashlib.sha256(data).hexdigest() == digest_of(blob_key):
                return data
            self._local.forget_verified(job_id, blob_key)
        raise CorruptBlobError(
            f"blob {job_id}/{blob_key} in {self._local.path} reads differently than when it was verified; "
            "nothing was returned; check this machine's disk and memory"
        )

    def _refill(self, ha: HaBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob from the HA store, unless a sweep, which may have passed here, deletes it."""
        with suppress(ObjectNotFoundError, CorruptBlobError):
            return self._local.verified(job_id, blob_key)  # an earlier refill has just finished
        path = ha.fill(self._local, job_id, blob_key)
        if self._is_deleting(job_id, blob_key):
            self._local.delete(job_id, blob_key)
            self._local.drop_empty(job_id)
            raise ObjectNotFoundError(f"blob {job_id}/{blob_key} is being deleted: nothing keeps it")
        return path

    def _is_deleting(self, job_id: str, blob_key: BlobKey) -> bool:
        """Return whether a blob is being deleted; without an answer, let the next sweep list the stores."""
        try:
            with self._stores.journal.reading() as reading:
                return _is_deletable(reading, job_id, blob_key) and reading.status().safe_since_s is None
        except LockgateError:  # a get needs no journal
            self._stores.listing_time.forget()
            return False


def _is_deletable(reading: Reading, job_id: str, blob_key: BlobKey) -> bool:
    """Return whether nothing may keep the blob: it has no row, it is marked, or its job has ended."""
    blob = reading.get(Blob, job_id, blob_key)
    return blob is None or blob.deleting_s is not None or is_ended(reading, job_id)


def _read(path: Path) -> bytes:
    with translated("read", str(path), changes=False):
        return path.read_bytes()


def _copy(path: Path, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
    with local.incoming() as incoming:
        with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                incoming.write(data)
        return local.place(incoming, job_id, blob_key)
