"""Receive and store blobs: a put is acknowledged when it is durable, and a refused put leaves nothing.

    incoming file → local store, synced → HA store → row in the journal

Bytes are stored before the row. A crash in between leaves bytes without a row, whose upload set lapses; the
sweep finds them. A row without bytes never exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, Unpack

import msgspec

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, NewBlob, PutOptions
from lockgate.storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_digest,
    check_upload_set,
    digest_of,
    new_blob_key,
    upload_set_of,
)
from lockgate.storage_core.blobs.registry.references import refuse_ended
from lockgate.storage_core.blobs.registry.upload_sets import PutBlob
from lockgate.storage_core.blobs.server.open_upload_sets import UploadSets
from lockgate.storage_core.blobs.sources import Source, chunks_of, size_of
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.ha_upload import HaUpload
from lockgate.storage_core.blobs.storage.incoming_file import IncomingFile
from lockgate.storage_core.errors import (
    ConflictError,
    CorruptBlobError,
    FencedError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal import Mutation, Refused, WriteOutcome
from lockgate.storage_core.journal.write.validation import check_values

LONG_PUT_BYTES: Final = 256 * 1024
"""A put this large, or of unknown size, may outlast the memory of an ended job, so check the job first."""


class BlobIngest:
    """Receive blobs for a server."""

    def __init__(self, stores: BlobStores, sets: UploadSets) -> None:
        self._stores = stores
        self._local = stores.local
        self._ha = stores.ha
        self._sets = sets

    def put(self, source: Source, *, job_id: str = NO_JOB, **options: Unpack[PutOptions]) -> BlobInfo:
        """Put bytes; see `Blobs.put`."""
        new = NewBlob(**options)
        size_bytes = size_of(source)
        with self.receiving(job_id, new, size_bytes=size_bytes) as blob:
            for chunk in chunks_of(source, size_bytes):
                blob.write(chunk)
            return self.keep(blob, job_id, new)

    @contextmanager
    def receiving(
        self, job_id: str, new: NewBlob, *, size_bytes: int | None = None
    ) -> Iterator[ReceivingBlob]:
        """Yield a blob to write bytes to; on exit its bytes are deleted unless it was stored.

        If the digest is known, so is the key: the bytes are sent to the HA store while they arrive.
        """
        check_blob_job(job_id)
        if size_bytes is None or size_bytes >= LONG_PUT_BYTES:
            with self._stores.journal.reading() as reading:
                refuse_ended(reading, job_id)
        self._stores.owner.claim_local()
        with self._upload_set(new) as upload_set, self._local.incoming() as incoming:
            if self._ha is None or new.guarantee != "ha" or new.digest is None or size_bytes is None:
                yield ReceivingBlob(incoming, upload_set)
                return
            blob_key = new_blob_key(check_digest(new.digest), upload_set)
            with self._uploading(self._ha, incoming, size_bytes, job_id, blob_key) as upload:
                yield ReceivingBlob(incoming, upload_set, (blob_key, upload))

    def keep(self, received: ReceivingBlob, job_id: str, new: NewBlob) -> BlobInfo:
        """Store and record complete bytes; see `Blobs.put`."""
        return self.record(self.store(received, job_id, new))

    def store(self, received: ReceivingBlob, job_id: str, new: NewBlob) -> StoredBlob:
        """Copy complete bytes to every store, for `record`. On an error nothing is left."""
        incoming, early = received.incoming, received.early_upload
        if new.digest is not None and new.digest != incoming.digest:
            raise CorruptBlobError(
                f"blob {new.name or 'without a name'} of job {job_id}: the {incoming.size_bytes} bytes "
                f"received hash to {incoming.digest}, not to {new.digest}; nothing was kept; send them again"
            )
        blob_key = new_blob_key(incoming.digest, received.upload_set) if early is None else early[0]
        blob = PutBlob(
            job_id=job_id,
            blob_key=blob_key,
            upload_set=upload_set_of(blob_key),
            guarantee=new.guarantee,
            use=new.use,
            name=new.name,
            size_bytes=incoming.size_bytes,
            joins=new.upload_set is not None,
            owners=tuple(new.owners),
            lapse_s=new.lapse_s,
        )
        stored = StoredBlob(blob=blob, request_id=new.request_id)
        check_values(stored.mutation)
        with ExitStack() as stack, step("blob-put"):
            upload = None if early is None else early[1]
            if upload is None and self._ha is not None and blob.guarantee == "ha":
                size_bytes = incoming.size_bytes
                uploading = self._uploading(self._ha, incoming, size_bytes, job_id, blob_key)
                upload = stack.enter_context(uploading)
            self._place(incoming, upload, blob)
        return stored

    def record(self, stored: StoredBlob) -> BlobInfo:
        """Record stored bytes in the journal; if the journal refuses, the bytes are deleted.

        Returns:
            The blob, or the one that an earlier try of the same request recorded.

        Raises:
            NotAppliedError: It was not recorded, and nothing of it is left.
            OutcomeUnknownError: It may have been recorded.
        """
        blob = stored.blob
        with step("blob-put"):
            try:
                (outcome,) = self._stores.journal.write([stored.mutation])
            except NotAppliedError:
                self._discard(blob)
                raise
            except BaseException:  # it may have been recorded
                self._leave_to_sweep(UploadSetId(blob.upload_set))
                raise
            return self._result(stored, outcome)

    @contextmanager
    def _upload_set(self, new: NewBlob) -> Iterator[UploadSetId]:
        """Keep the upload set of a put open until the block ends."""
        if new.upload_set is not None:
            yield check_upload_set(new.upload_set)
        else:
            with self._sets.own.in_use() as upload_set:
                yield upload_set

    @contextmanager
    def _uploading(
        self, ha: HaBlobs, incoming: IncomingFile, size_bytes: int, job_id: str, blob_key: BlobKey
    ) -> Iterator[HaUpload]:
        """Claim the HA store, and open an upload; parts that cannot be deleted are left to the sweep."""
        self._stores.owner.claim_ha()
        upload = ha.upload(incoming.fileno(), size_bytes, job_id, blob_key)
        try:
            with upload:
                yield upload
        finally:
            if upload.is_left:
                self._leave_to_sweep(upload_set_of(blob_key))

    def _place(self, incoming: IncomingFile, upload: HaUpload | None, blob: PutBlob) -> None:
        """Place the bytes in every store; parts are uploaded while the file is synced."""
        try:
            if upload is not None:
                upload.follow(incoming.size_bytes)
            self._local.place(incoming, blob.job_id, BlobKey(blob.blob_key))
            if upload is not None:
                upload.complete()
        except OutcomeUnknownError:
            self._leave_to_sweep(UploadSetId(blob.upload_set))
            raise
        except NotAppliedError:  # the HA store has nothing of it
            self._discard(blob, has_ha=False)
            raise
        except BaseException:
            self._discard(blob)
            raise

    def _result(self, stored: StoredBlob, outcome: WriteOutcome) -> BlobInfo:
        """Return a recorded blob; otherwise delete its bytes and raise the reason."""
        blob = stored.blob
        if isinstance(outcome, Refused):
            if isinstance(outcome.error, NotAppliedError | FencedError):
                self._discard(blob)
                raise self._refusal(blob, outcome.error)
            self._leave_to_sweep(UploadSetId(blob.upload_set))
            raise outcome.error
        recorded = BlobKey(outcome.result)
        if recorded != blob.blob_key:
            self._discard(blob)
        if digest_of(recorded) != digest_of(BlobKey(blob.blob_key)):
            raise ConflictError(
                f"put {stored.request_id} of job {blob.job_id} has recorded blob {recorded} with other "
                "bytes; nothing was kept of these; put them with a new request id"
            )
        return BlobInfo(job_id=blob.job_id, blob_key=recorded, size_bytes=blob.size_bytes)

    def _discard(self, blob: PutBlob, *, has_ha: bool = True) -> None:
        """Delete the bytes of a blob that was not recorded; what a store kept is left to the sweep."""
        job_id, blob_key = blob.job_id, BlobKey(blob.blob_key)
        try:
            self._local.delete(job_id, blob_key)
            self._local.drop_empty(job_id)
            is_kept = False
            if has_ha and self._ha is not None and blob.guarantee == "ha":
                is_kept = bool(self._ha.delete([(job_id, blob_key)]))
        except LockgateError:
            is_kept = True
        if is_kept:
            self._leave_to_sweep(UploadSetId(blob.upload_set))

    def _refusal(self, blob: PutBlob, error: LockgateError) -> LockgateError:
        """Return why a blob was not recorded; a lapsed set of this server is not the sender's error."""
        if (
            not isinstance(error, FencedError)
            or blob.joins
            or not self._sets.has_lost(UploadSetId(blob.upload_set))
        ):
            return error
        return StoreUnavailableError(
            f"blob {blob.job_id}/{blob.blob_key}: upload set {blob.upload_set} of this server had lapsed; "
            "nothing was kept; put the bytes again: the server opens another set"
        )

    def _leave_to_sweep(self, upload_set: UploadSetId) -> None:
        """Leave bytes that may have been recorded to the sweep, which stages them after their set."""
        self._sets.own.retire(upload_set, lapses=True)
        with suppress(LockgateError):  # the daily listing finds them; the put's error is the one to report
            self._stores.listing_time.forget()


class ReceivingBlob:
    """A blob being received."""

    def __init__(
        self, incoming: IncomingFile, upload_set: UploadSetId, early: tuple[BlobKey, HaUpload] | None = None
    ) -> None:
        self.incoming = incoming
        self.upload_set = upload_set
        self._early = early

    def write(self, data: bytes) -> None:
        """Append bytes; complete parts of them are being sent to the HA store when this returns.

        Raises:
            StoreUnavailableError: The disk is full, or the HA store is unreachable.
        """
        self.incoming.write(data)
        if self._early is not None:
            self._early[1].follow(self.incoming.size_bytes)

    @property
    def early_upload(self) -> tuple[BlobKey, HaUpload] | None:
        """The expected key and the upload, if the number of bytes received is the expected one."""
        if self._early is None or self._early[1].size_bytes != self.incoming.size_bytes:
            return None
        return self._early


class StoredBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob whose bytes are in every store, and that has no row yet."""

    blob: PutBlob
    request_id: str | None

    @property
    def mutation(self) -> Mutation:
        """The mutation that records it."""
        if self.request_id is None:
            return Mutation(op=self.blob)
        return Mutation(op=self.blob, request_id=f"{self.request_id}@{self.blob.job_id}")
