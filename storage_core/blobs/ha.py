"""The HA store of blobs: any `Store`, `<job id>/<blob key>` an object each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key, digest_of, is_blob_key
from storage_core.blobs.local import Found, Incoming, LocalBlobs
from storage_core.errors import CorruptBlobError, LockgateError, ObjectNotFoundError, StoreUnavailableError
from storage_core.failpoints import step
from storage_core.ids import new_token
from storage_core.parallel import in_order, in_parallel
from storage_core.settings import MIB
from storage_core.stores import Part, Store

READ_BYTES: Final = 8 * MIB
READ_AHEAD: Final = 4
"""Calls of so many bytes under way for one download: all that it holds in memory."""


class HaBlobs:
    """Blobs in a store that outlives this machine.

    Args:
        store: Opened at the prefix of the blobs.
        part_bytes: A blob larger than this is uploaded in parts of so many bytes.
        parallelism: Calls under way for one blob.
    """

    def __init__(self, store: Store, *, part_bytes: int, parallelism: int) -> None:
        self.store = store
        self._part_bytes = max(part_bytes, store.capabilities.min_part_bytes)
        self._parallelism = parallelism

    def put(self, path: Path, job_id: str, blob_key: BlobKey) -> None:
        """Copy a file to its blob's name; whole when this returns, and durable.

        Raises:
            LockgateError: It could not be; nothing is left that anybody sees.
        """
        key = _key(job_id, blob_key)
        with step("blob-ha"), path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes <= self._part_bytes:
                self.store.put(key, file.read())
            else:
                self._put_parts(file.fileno(), size_bytes, key)

    def get_into(self, incoming: Incoming, job_id: str, blob_key: BlobKey) -> None:
        """Copy a blob to a file; not yet placed.

        Raises:
            ObjectNotFoundError: It is not there.
            CorruptBlobError: It is, with other bytes.
        """
        key = _key(job_id, blob_key)
        with step("blob-ha"):
            size_bytes = self.store.head(key).size
            starts = range(0, size_bytes, READ_BYTES)

            def read(start: int) -> bytes:
                return self.store.get(key, start=start, length=min(READ_BYTES, size_bytes - start))

            for data in in_order(read, starts, min(self._parallelism, READ_AHEAD)):
                incoming.write(data)
        if incoming.digest != digest_of(blob_key):
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.store.url} has {size_bytes} bytes that hash to "
                f"{incoming.digest}: the object was damaged; nothing was taken from it"
            )

    def fill(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to a local store, verified; returns its path there.

        Raises:
            ObjectNotFoundError: It is not there.
            CorruptBlobError: It is, with other bytes.
        """
        with local.incoming() as incoming:
            self.get_into(incoming, job_id, blob_key)
            return local.place(incoming, job_id, blob_key)

    def delete(self, blobs: Sequence[tuple[str, BlobKey]]) -> list[tuple[str, BlobKey]]:
        """Delete blobs in few calls; returns those that were left.

        Raises:
            LockgateError: The store did not answer, or refused all: each may be deleted or not.
        """
        keys = {_key(job_id, blob_key): (job_id, blob_key) for job_id, blob_key in blobs}
        with step("blob-ha-delete"):
            return [keys[failure.key] for failure in self.store.delete_many(list(keys))]

    def delete_job(self, job_id: str) -> None:
        """Delete all blobs of a job, and what is being uploaded for it.

        Raises:
            StoreUnavailableError: Some were left; they are found again by the next sweep.
        """
        prefix = f"{check_blob_job(job_id)}/"
        left: list[str] = []
        with step("blob-ha-delete"):
            for page in self.store.pages(prefix):
                left += [failure.key for failure in self.store.delete_many([info.key for info in page])]
            for uploads in self.store.upload_pages(prefix):
                for upload in uploads:
                    self.store.abort_upload(upload.key, upload.upload_id)
        if left:
            raise StoreUnavailableError(
                f"blobs of job {job_id} in {self.store.url}: {len(left)} were left, {left[0]} the first; "
                "the next sweep deletes them"
            )

    def blobs(self, job_id: str | None = None) -> Iterator[Found]:
        """Yield the blobs of one job, or of all, by key; foreign objects are left out."""
        prefix = "" if job_id is None else f"{check_blob_job(job_id)}/"
        for page in self.store.pages(prefix):
            for info in page:
                owner, _, name = info.key.partition("/")
                if is_blob_key(name):
                    yield Found(job_id=owner, blob_key=BlobKey(name), size_bytes=info.size)

    def has(self, job_id: str, blob_key: BlobKey) -> bool:
        """Tell whether a blob is there; its bytes are not looked at."""
        try:
            self.store.head(_key(job_id, blob_key))
        except ObjectNotFoundError:
            return False
        return True

    def _put_parts(self, file: int, size_bytes: int, key: str) -> None:
        part_bytes = max(self._part_bytes, -(-size_bytes // self.store.capabilities.max_parts))
        token = new_token()
        upload_id = self.store.begin_upload(key, token)

        def send(offset: int) -> Part:
            data = os.pread(file, part_bytes, offset)
            return self.store.put_part(key, upload_id, offset // part_bytes + 1, offset, data)

        try:
            parts = list(in_parallel(send, range(0, size_bytes, part_bytes), self._parallelism))
            self.store.complete_upload(self.store.seal_upload(key, upload_id, token, parts))
        except BaseException:
            with suppress(LockgateError):
                self.store.abort_upload(key, upload_id)
            raise


def _key(job_id: str, blob_key: BlobKey) -> str:
    return f"{check_blob_job(job_id)}/{check_blob_key(blob_key)}"
