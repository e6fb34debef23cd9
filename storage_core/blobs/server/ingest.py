"""Takes blobs in: nothing is acknowledged before it stands; of what is refused nothing stays for good.

    incoming file → local store, synced → HA store → row in the journal

Bytes come before the row: a crash between leaves bytes that no row knows and whose upload set lapses, which
the sweep finds. A row without bytes never stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Final

from lockgate.storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_digest,
    digest_of,
    new_blob_key,
    upload_set_of,
)
from lockgate.storage_core.blobs.protocol import BlobInfo, NewBlob
from lockgate.storage_core.blobs.registry.references import refuse_ended
from lockgate.storage_core.blobs.registry.rows import BlobUse, Guarantee
from lockgate.storage_core.blobs.registry.uploads import PutBlob
from lockgate.storage_core.blobs.server.in_flight import Putting, putting
from lockgate.storage_core.blobs.server.receiving import Arriving, Placed
from lockgate.storage_core.blobs.server.serve import HandingOut
from lockgate.storage_core.blobs.server.upload_sets import UploadSets
from lockgate.storage_core.blobs.sources import Source, chunks_of, size_of
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.ha_upload import HaUpload
from lockgate.storage_core.blobs.storage.incoming_file import Incoming
from lockgate.storage_core.blobs.storage.listing_marker import LastListing
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.blobs.storage.server_liveness import Presence
from lockgate.storage_core.clock import Clock
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
from lockgate.storage_core.journal import Journal, Outcome, Refused
from lockgate.storage_core.journal.write.validation import check_values

MAY_LAST_BYTES: Final = 256 * 1024
"""A put of as many, or of nobody knows how many, may outlast the memory of a job that has ended."""


class TakingIn(HandingOut):
    """What a blob server takes.

    Args:
        local: Its files; no other server's.
        ha: Has a copy of what a recovery needs; None: there is no other copy.
        journal: Learns of blobs whose bytes stand.
        retention_s: So long its own upload set takes new puts.
        clock: Waits between renewals.
    """

    def __init__(
        self, local: LocalBlobs, ha: HaBlobs | None, journal: Journal, *, retention_s: float, clock: Clock
    ) -> None:
        super().__init__(local, ha, journal)
        self.retention_s = retention_s
        self.sets = UploadSets(journal, clock, own_lasts_s=retention_s)
        self.presence = Presence(local.path)

    def put(
        self,
        source: Source,
        *,
        job_id: str = NO_JOB,
        guarantee: Guarantee = "ha",
        use: BlobUse = "other",
        name: str = "",
        upload_set: UploadSetId | None = None,
        owners: Sequence[str] = (),
        lapse_s: float | None = None,
        digest: str | None = None,
        request_id: str | None = None,
    ) -> BlobInfo:
        """Take bytes in; see `Blobs.put`."""
        new = NewBlob(
            guarantee=guarantee,
            use=use,
            name=name,
            upload_set=upload_set,
            owners=tuple(owners),
            lapse_s=lapse_s,
            digest=digest,
            request_id=request_id,
        )
        size_bytes = size_of(source)
        with self.arriving(job_id, new, size_bytes=size_bytes) as arriving:
            for chunk in chunks_of(source, size_bytes):
                arriving.write(chunk)
            return self.keep(arriving, job_id, new)

    def putting(self) -> AbstractContextManager[Putting]:
        """Be at work on puts until the block ends: each is recorded by then, or given up."""
        return putting(self.sets.own, self.presence)

    @contextmanager
    def arriving(
        self, job_id: str, new: NewBlob, *, size_bytes: int | None = None, within: Putting | None = None
    ) -> Iterator[Arriving]:
        """Hold what takes a blob's bytes; nothing of them stays after the block, unless they were kept.

        If their digest is told, they go on to the HA store while they come: their key is known.

        Args:
            job_id: Of the job that they belong to.
            new: What is said of them.
            size_bytes: How many they are; None: their end tells.
            within: Puts of which this one is recorded later; None: it is within the block.
        """
        check_blob_job(job_id)
        if size_bytes is None or size_bytes >= MAY_LAST_BYTES:
            self._refuse_ended(job_id)
        with nullcontext(within) if within else self.putting() as puts, self.local.incoming() as incoming:
            upload_set = puts.set_of(new)
            if self.ha is None or new.guarantee != "ha" or new.digest is None or size_bytes is None:
                yield Arriving(incoming, upload_set)
                return
            blob_key = new_blob_key(check_digest(new.digest), upload_set)
            with self._uploading(self.ha, incoming, size_bytes, job_id, blob_key) as upload:
                yield Arriving(incoming, upload_set, (blob_key, upload))

    def keep(self, arriving: Arriving, job_id: str, new: NewBlob) -> BlobInfo:
        """Make a blob of bytes that are complete; see `Blobs.put`."""
        (kept,) = self.record([self.place(arriving, job_id, new)])
        if isinstance(kept, LockgateError):
            raise kept
        return kept

    def place(self, arriving: Arriving, job_id: str, new: NewBlob) -> Placed:
        """Place bytes that are complete in every store; `record` them next. On an error nothing is left."""
        incoming, ahead = arriving.incoming, arriving.ahead
        if new.digest is not None and new.digest != incoming.digest:
            raise CorruptBlobError(
                f"blob {new.name or 'without a name'} of job {job_id}: {incoming.size_bytes} bytes came that "
                f"hash to {incoming.digest}, not to {new.digest}; nothing was kept; send them again"
            )
        blob_key = new_blob_key(incoming.digest, arriving.upload_set) if ahead is None else ahead[0]
        blob = PutBlob(
            job_id=job_id,
            blob_key=blob_key,
            upload_set=upload_set_of(blob_key),
            guarantee=new.guarantee,
            use=new.use,
            name=new.name,
            size_bytes=incoming.size_bytes,
            joins=new.upload_set is not None,
            owners=new.owners,
            lapse_s=new.lapse_s,
        )
        placed = Placed(blob=blob, request_id=new.request_id)
        check_values(placed.mutation)
        with ExitStack() as held, step("blob-put"):
            upload = None if ahead is None else ahead[1]
            if upload is None and self.ha is not None and blob.guarantee == "ha":
                size_bytes = incoming.size_bytes
                uploading = self._uploading(self.ha, incoming, size_bytes, job_id, blob_key)
                upload = held.enter_context(uploading)
            self._place(incoming, upload, blob)
        return placed

    def record(self, placed: Sequence[Placed]) -> list[BlobInfo | LockgateError]:
        """Make blobs of bytes that stand, in one transaction; of one that is refused nothing is left.

        Returns:
            Of each, in their order: the blob, or that which an earlier try of its request has made; or why
            there is none.

        Raises:
            NotAppliedError: None was recorded, and nothing of them is left.
            OutcomeUnknownError: Each may have been recorded.
        """
        with step("blob-put"):
            try:
                outcomes = self.journal.write([one.mutation for one in placed])
            except NotAppliedError:
                for one in placed:
                    self._discard(one.blob)
                raise
            except BaseException:  # they may have been recorded
                for upload_set in {one.blob.upload_set for one in placed}:
                    self._leave(UploadSetId(upload_set))
                raise
            return [self._concluded(one, outcome) for one, outcome in zip(placed, outcomes, strict=True)]

    @contextmanager
    def _uploading(
        self, ha: HaBlobs, incoming: Incoming, size_bytes: int, job_id: str, blob_key: BlobKey
    ) -> Iterator[HaUpload]:
        """Hold an upload to the HA store; if parts of it cannot be dropped, they are left to the sweep."""
        upload = ha.upload(incoming.fileno(), size_bytes, job_id, blob_key)
        try:
            with upload:
                yield upload
        finally:
            if upload.is_left:
                self._leave(upload_set_of(blob_key))

    def _refuse_ended(self, job_id: str) -> None:
        """Let nothing begin for a job that has ended: by the time it were recorded that may be forgotten."""
        with self.journal.reading() as reading:
            refuse_ended(reading, job_id)

    def _place(self, incoming: Incoming, upload: HaUpload | None, blob: PutBlob) -> None:
        """Place the bytes in every store; parts of them go while the file is synced."""
        try:
            if upload is not None:
                upload.follow(incoming.size_bytes)
            self.local.place(incoming, blob.job_id, BlobKey(blob.blob_key))
            if upload is not None:
                upload.complete()
        except OutcomeUnknownError:
            self._leave(UploadSetId(blob.upload_set))
            raise
        except NotAppliedError:  # the HA store has none of it
            self._discard(blob, has_ha=False)
            raise
        except BaseException:
            self._discard(blob)
            raise

    def _concluded(self, placed: Placed, outcome: Outcome) -> BlobInfo | LockgateError:
        """Return what came of a blob whose bytes stand; unless it was recorded, they go."""
        blob = placed.blob
        if isinstance(outcome, Refused):
            if isinstance(outcome.error, NotAppliedError | FencedError):
                self._discard(blob)
                return self._refusal(blob, outcome.error)
            self._leave(UploadSetId(blob.upload_set))
            return outcome.error
        recorded = BlobKey(outcome.result)
        if recorded != blob.blob_key:
            self._discard(blob)
        if digest_of(recorded) != digest_of(BlobKey(blob.blob_key)):
            return ConflictError(
                f"put {placed.request_id} of job {blob.job_id} has made blob {recorded}, of other bytes; "
                "nothing was kept of these; put them under a new request id"
            )
        return BlobInfo(job_id=blob.job_id, blob_key=recorded, size_bytes=blob.size_bytes)

    def _discard(self, blob: PutBlob, *, has_ha: bool = True) -> None:
        """Delete the bytes of a blob that was not recorded; what a store keeps is left to the sweep."""
        job_id, blob_key = blob.job_id, BlobKey(blob.blob_key)
        try:
            self.local.delete(job_id, blob_key)
            self.local.drop_empty(job_id)
            is_kept = False
            if has_ha and self.ha is not None and blob.guarantee == "ha":
                is_kept = bool(self.ha.delete([(job_id, blob_key)]))
        except LockgateError:
            is_kept = True
        if is_kept:
            self._leave(UploadSetId(blob.upload_set))

    def _refusal(self, blob: PutBlob, error: LockgateError) -> LockgateError:
        """Return why a blob was not recorded: it is not its sender's fault that this server's set lapsed."""
        if (
            not isinstance(error, FencedError)
            or blob.joins
            or not self.sets.has_lost(UploadSetId(blob.upload_set))
        ):
            return error
        return StoreUnavailableError(
            f"blob {blob.job_id}/{blob.blob_key}: this server's own upload set {blob.upload_set} had "
            "lapsed; nothing was kept; put the bytes again: it opens another set"
        )

    def _leave(self, upload_set: UploadSetId) -> None:
        """Leave bytes of which nobody knows whether they were recorded to the sweep.

        It takes them when their set is closed: this server's own takes no new put, and lapses.
        """
        self.sets.own.leave(upload_set)
        with suppress(LockgateError):  # then a day's listing finds them; what the put met is to be told
            LastListing(self.local.path).forget()
