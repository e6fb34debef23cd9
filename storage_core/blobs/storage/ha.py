"""The HA store of blobs: any `Store`, `<job id>/<blob key>` an object each."""

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
from lockgate.storage_core.blobs.storage.incoming_file import Incoming
from lockgate.storage_core.blobs.storage.local import Found, Goes, LocalBlobs
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import MIB
from lockgate.storage_core.stores import Store

READ_BYTES: Final = 8 * MIB
READ_AHEAD: Final = 4
"""Calls of so many bytes under way for one download: all that it holds in memory."""


class OpenUpload(msgspec.Struct, frozen=True):
    """A multipart upload that was begun and neither completed nor aborted."""

    job_id: str
    blob_key: BlobKey
    upload_id: str


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
            NotAppliedError: It could not be; nothing is left of it.
            OutcomeUnknownError: It is there or not; parts of it may be left.
        """
        with path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            with self.upload(file.fileno(), size_bytes, job_id, blob_key) as upload:
                upload.complete()

    def upload(self, file: int, size_bytes: int, job_id: str, blob_key: BlobKey) -> HaUpload:
        """Return an upload of a file that may still be written; nothing is sent yet.

        Args:
            file: Its descriptor, which can be read.
            size_bytes: That it will have.
            job_id: That the blob belongs to.
            blob_key: Its key.
        """
        return HaUpload(
            self.store,
            _key(job_id, blob_key),
            file,
            size_bytes,
            part_bytes=self._part_bytes,
            parallelism=self._parallelism,
        )

    def get_into(self, incoming: Incoming, job_id: str, blob_key: BlobKey) -> None:
        """Copy a blob to a file; not yet placed.

        Raises:
            ObjectNotFoundError: It is not there.
            CorruptBlobError: It is, with other bytes.
        """
        key = _key(job_id, blob_key)
        with step("blob-ha"):
            first = self.store.get(key, start=0, length=READ_BYTES)
            incoming.write(first)
            if len(first) == READ_BYTES:  # most blobs are smaller, and one call is half of two
                self._get_rest(incoming, key)
        if incoming.digest != digest_of(blob_key):
            raise CorruptBlobError(
                f"blob {job_id}/{blob_key} in {self.store.url} has {incoming.size_bytes} bytes that hash to "
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
            return local.place(incoming, job_id, blob_key, is_copy=True)

    def delete(self, blobs: Sequence[tuple[str, BlobKey]]) -> list[tuple[str, BlobKey]]:
        """Delete blobs in few calls; returns those that were left.

        Raises:
            LockgateError: The store did not answer, or refused all: each may be deleted or not.
        """
        keys = {_key(job_id, blob_key): (job_id, blob_key) for job_id, blob_key in blobs}
        with step("blob-ha-delete"):
            return [keys[failure.key] for failure in self.store.delete_many(list(keys))]

    def delete_listed(self, job_id: str, goes: Goes) -> int:
        """Delete what listings of a job show, and abort what is being uploaded for it.

        Args:
            job_id: Of the job.
            goes: Asked after each listing; what is no blob goes in any case.

        Returns:
            How many were left that were to go.

        Raises:
            LockgateError: The store did not answer, or refused all.
        """
        prefix = f"{check_blob_job(job_id)}/"
        left = 0
        with step("blob-ha-delete"):
            for page in self.store.pages(prefix):
                going = _going([info.key for info in page], goes)
                left += len(self.store.delete_many(going)) if going else 0
            for uploads in self.store.upload_pages(prefix):
                aborting = set(_going([upload.key for upload in uploads], goes))
                for upload in uploads:
                    if upload.key in aborting:
                        self.store.abort_upload(upload.key, upload.upload_id)
        return left

    def blobs(self, job_id: str | None = None) -> Iterator[Found]:
        """Yield the blobs of one job, or of all, by key; foreign objects are left out."""
        prefix = "" if job_id is None else f"{check_blob_job(job_id)}/"
        for page in self.store.pages(prefix):
            for info in page:
                named = _named(info.key)
                if named is not None:
                    yield Found(job_id=named[0], blob_key=named[1], size_bytes=info.size)

    def open_uploads(self) -> Iterator[list[OpenUpload]]:
        """Yield the multipart uploads of blobs that are open, in pages; foreign ones are left out."""
        for page in self.store.upload_pages():
            named = [(_named(info.key), info.upload_id) for info in page]
            yield [OpenUpload(*name, upload_id) for name, upload_id in named if name is not None]

    def abort(self, upload: OpenUpload) -> None:
        """Drop an open upload; one that is gone is dropped already."""
        self.store.abort_upload(_key(upload.job_id, upload.blob_key), upload.upload_id)

    def size_of(self, job_id: str, blob_key: BlobKey) -> int | None:
        """Return how many bytes a blob's object has, None if it is not there."""
        try:
            return self.store.head(_key(job_id, blob_key)).size
        except ObjectNotFoundError:
            return None

    def has(self, job_id: str, blob_key: BlobKey) -> bool:
        """Tell whether a blob is there; its bytes are not looked at."""
        return self.size_of(job_id, blob_key) is not None

    def _get_rest(self, incoming: Incoming, key: str) -> None:
        size_bytes = self.store.head(key).size
        starts = range(incoming.size_bytes, size_bytes, READ_BYTES)

        def read(start: int) -> bytes:
            return self.store.get(key, start=start, length=min(READ_BYTES, size_bytes - start))

        for data in in_order(read, starts, min(self._parallelism, READ_AHEAD)):
            incoming.write(data)


def _key(job_id: str, blob_key: BlobKey) -> str:
    return f"{check_blob_job(job_id)}/{check_blob_key(blob_key)}"


def _named(key: str) -> tuple[str, BlobKey] | None:
    """Return the job and the blob key that an object is named for, None if it is foreign."""
    job_id, _, name = key.partition("/")
    return (job_id, BlobKey(name)) if is_blob_key(name) and is_blob_job(job_id) else None


def _going(keys: Sequence[str], goes: Goes) -> list[str]:
    """Return those of a job's listed objects that are to go: what is no blob goes in any case."""
    blobs = {name[1]: key for key in keys if (name := _named(key)) is not None}
    staying = {blobs[blob_key] for blob_key in set(blobs).difference(goes(list(blobs)))}
    return [key for key in keys if key not in staying]
