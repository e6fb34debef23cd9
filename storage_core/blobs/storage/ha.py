"""The HA store of blobs: a `Store` with one object, `<job id>/<blob key>`, for each blob."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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
from lockgate.storage_core.blobs.storage.ha_upload import HaUpload
from lockgate.storage_core.blobs.storage.incoming_file import IncomingFile
from lockgate.storage_core.blobs.storage.local import ListedBlob, LocalBlobs, SelectBlobs
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import MIB
from lockgate.storage_core.stores import Store

READ_BYTES: Final = 8 * MIB
READ_AHEAD: Final = 4
"""Concurrent reads of one download, each of `READ_BYTES`; this bounds its memory."""


class OpenUpload(msgspec.Struct, frozen=True):
    """A multipart upload that was neither completed nor aborted."""

    job_id: str
    blob_key: BlobKey
    upload_id: str


class HaBlobs:
    """Blobs in a store that survives the loss of this machine."""

    def __init__(self, store: Store, *, part_bytes: int, parallelism: int) -> None:
        self.store = store
        self._part_bytes = max(part_bytes, store.capabilities.min_part_bytes)
        self._parallelism = parallelism

    def put(self, path: Path, job_id: str, blob_key: BlobKey) -> None:
        """Upload a file as a blob; complete and durable when this returns.

        Raises:
            NotAppliedError: It was not uploaded; nothing of it is left.
            OutcomeUnknownError: It may be there; parts of it may be left.
        """
        with path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            with self.upload(file.fileno(), size_bytes, job_id, blob_key) as upload:
                upload.complete()

    def upload(self, file: int, size_bytes: int, job_id: str, blob_key: BlobKey) -> HaUpload:
        """Return an upload of a file that may still be written; see `HaUpload`. It sends nothing yet."""
        return HaUpload(
            self.store,
            _key(job_id, blob_key),
            file,
            size_bytes,
            part_bytes=self._part_bytes,
            parallelism=self._parallelism,
        )

    def get_into(self, incoming: IncomingFile, job_id: str, blob_key: BlobKey) -> None:
        """Download a blob into a file that is not yet placed.

        Raises:
            ObjectNotFoundError: It is not there.
            CorruptBlobError: The object has other bytes.
        """
        key = _key(job_id, blob_key)
        with step("blob-ha"):
            first = self.store.get(key, start=0, length=READ_BYTES)
            incoming.write(first)
            if len(first) == READ_BYTES:  # most blobs are smaller: one request, without a head
                self._get_rest(incoming, key)
        if incoming.digest != digest_of(blob_key):
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.store.url} has {incoming.size_bytes} bytes that hash to "
                f"{incoming.digest}: the object is damaged; nothing was taken from it"
            )

    def fill(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a verified blob to a local store; return its path there.

        Raises:
            ObjectNotFoundError: It is not there.
            CorruptBlobError: The object has other bytes.
        """
        with local.incoming() as incoming:
            self.get_into(incoming, job_id, blob_key)
            return local.place(incoming, job_id, blob_key, is_copy=True)

    def delete(self, blobs: Sequence[tuple[str, BlobKey]]) -> list[tuple[str, BlobKey]]:
        """Delete blobs in bulk; return those that the store kept.

        Raises:
            LockgateError: The store did not answer, or refused the call; each blob may be deleted or not.
        """
        keys = {_key(job_id, blob_key): (job_id, blob_key) for job_id, blob_key in blobs}
        with step("blob-ha-delete"):
            return [keys[failure.key] for failure in self.store.delete_many(list(keys))]

    def delete_listed(self, job_id: str, select: SelectBlobs) -> int:
        """Delete the blobs of a job that `select` chooses of each listing, and abort its open uploads.

        Returns:
            Number of objects that should have been deleted and are left.

        Raises:
            LockgateError: The store did not answer, or refused the call.
        """
        prefix = f"{check_blob_job(job_id)}/"
        left = 0
        with step("blob-ha-delete"):
            for page in self.store.pages(prefix):
                keys = _deletable_keys([info.key for info in page], select)
                left += len(self.store.delete_many(keys)) if keys else 0
            for uploads in self.store.upload_pages(prefix):
                aborting = set(_deletable_keys([upload.key for upload in uploads], select))
                for upload in uploads:
                    if upload.key in aborting:
                        self.store.abort_upload(upload.key, upload.upload_id)
        return left

    def blobs(self, job_id: str | None = None) -> Iterator[ListedBlob]:
        """Yield the blobs of one job, or of all jobs, by key; foreign objects are left out."""
        prefix = "" if job_id is None else f"{check_blob_job(job_id)}/"
        for page in self.store.pages(prefix):
            for info in page:
                named = _named(info.key)
                if named is not None:
                    yield ListedBlob(job_id=named[0], blob_key=named[1], size_bytes=info.size)

    def open_uploads(self) -> Iterator[list[OpenUpload]]:
        """Yield pages of the open multipart uploads of blobs; foreign uploads are left out."""
        for page in self.store.upload_pages():
            named = [(_named(info.key), info.upload_id) for info in page]
            yield [OpenUpload(*name, upload_id) for name, upload_id in named if name is not None]

    def abort(self, upload: OpenUpload) -> None:
        """Abort an open upload, if it still exists."""
        self.store.abort_upload(_key(upload.job_id, upload.blob_key), upload.upload_id)

    def size_of(self, job_id: str, blob_key: BlobKey) -> int | None:
        """Return the size of a blob's object, None if it does not exist."""
        try:
            return self.store.head(_key(job_id, blob_key)).size
        except ObjectNotFoundError:
            return None

    def _get_rest(self, incoming: IncomingFile, key: str) -> None:
        size_bytes = self.store.head(key).size
        starts = range(incoming.size_bytes, size_bytes, READ_BYTES)

        def read(start: int) -> bytes:
            return self.store.get(key, start=start, length=min(READ_BYTES, size_bytes - start))

        for data in in_order(read, starts, min(self._parallelism, READ_AHEAD)):
            incoming.write(data)


def _key(job_id: str, blob_key: BlobKey) -> str:
    return f"{check_blob_job(job_id)}/{check_blob_key(blob_key)}"


def _named(key: str) -> tuple[str, BlobKey] | None:
    """Return the job id and blob key of an object, None if it is foreign."""
    job_id, _, name = key.partition("/")
    return (job_id, BlobKey(name)) if is_blob_key(name) and is_blob_job(job_id) else None


def _deletable_keys(keys: Sequence[str], select: SelectBlobs) -> list[str]:
    """Return which of a job's listed objects to delete: the chosen blobs, and every foreign object."""
    blobs = {name[1]: key for key in keys if (name := _named(key)) is not None}
    staying = {blobs[blob_key] for blob_key in set(blobs).difference(select(list(blobs)))}
    return [key for key in keys if key not in staying]
