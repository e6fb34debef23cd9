"""The blob server: takes blobs in, hands them out, owns what stands in its local store and in the HA store.

    put    incoming file → local store, synced → HA store → row in the journal → acknowledged
    get    local store, verified → else refilled from the HA store

Bytes come before the row: a crash between leaves bytes that no row knows and whose upload set lapses, which
the sweep finds. A row without bytes never stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from storage_core.blobs.arriving import Arriving, Placed
from storage_core.blobs.at_once import delete_logs
from storage_core.blobs.ended_jobs import that_go
from storage_core.blobs.ha import HaBlobs
from storage_core.blobs.ha_upload import HaUpload
from storage_core.blobs.handing_out import HandingOut
from storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_blob_key,
    check_digest,
    check_upload_set,
    digest_of,
    new_blob_key,
    upload_set_of,
)
from storage_core.blobs.last_listing import LastListing
from storage_core.blobs.local import Incoming, LocalBlobs
from storage_core.blobs.presence import Presence
from storage_core.blobs.protocol import BlobInfo, NewBlob
from storage_core.blobs.putting import Putting, putting
from storage_core.blobs.reports import SweepReport, Verified
from storage_core.blobs.sources import Source, chunks_of, size_of
from storage_core.blobs.sweep import sweep
from storage_core.blobs.upload_sets import UploadSets
from storage_core.blobs.verify import verify
from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    ConflictError,
    CorruptBlobError,
    FencedError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from storage_core.failpoints import step
from storage_core.journal import Journal, Mutation, Outcome, Refused, Stamp
from storage_core.journal.blob_rows import PAGE, JobBlobs, blobs_of, jobs_of, owned_by, references_of
from storage_core.journal.ops import Op
from storage_core.journal.ops.references import (
    DropReference,
    FailJob,
    FinishJob,
    SubmitJob,
    TakeReference,
    refuse_ended,
)
from storage_core.journal.ops.uploads import PutBlob
from storage_core.journal.rows import Blob, BlobUse, Guarantee, Reference
from storage_core.journal.safe_mode import refuse_in_safe_mode
from storage_core.journal.values import check_values
from storage_core.parallel import Progress, no_progress
from storage_core.stores.pages import in_pages

RETENTION_S: Final = 1_800.0

MAY_LAST_BYTES: Final = 256 * 1024
"""A put of as many, or of nobody knows how many, may outlast the memory of a job that has ended."""


class BlobServer(HandingOut):
    """Blobs over a local store, an HA store if there is one, and a journal. See `Blobs` for its calls.

    Use it as a context manager, or `close` it: its own upload set is completed then.

    Args:
        local: Its files; no other server's.
        ha: None: the local store is all that there is.
        journal: Knows the blobs and what keeps them; stays open.
        retention_s: An unreferenced blob lives one to two of these.
        clock: Waits between renewals; the machine's by default.
    """

    def __init__(
        self,
        local: LocalBlobs,
        ha: HaBlobs | None,
        journal: Journal,
        *,
        retention_s: float = RETENTION_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(local, ha, journal)
        self.retention_s = retention_s
        self.sets = UploadSets(journal, clock or SystemClock(), own_lasts_s=retention_s)
        self.presence = Presence(local.path)

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set whose lease this server renews; see `Blobs.begin_set`."""
        return self.sets.begin(check_blob_job(job_id))

    def begin_set_of(self, holder: str, job_id: str) -> tuple[UploadSetId, Stamp]:
        """Open an upload set for an uploader that is another process, and renews its lease itself.

        Args:
            holder: The uploader.
            job_id: Of the job that the blobs are for.

        Returns:
            The set, and the stamp with which it is to be renewed.
        """
        return self.sets.take(holder, check_blob_job(job_id))

    def renew_sets(self, holder: str, held: Mapping[UploadSetId, Stamp]) -> dict[UploadSetId, str]:
        """Renew the leases of an uploader that is another process; returns a word about each that is lost."""
        return self.sets.renew(holder, held)

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

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage a set's blobs; see `Blobs.complete_set`."""
        return self.sets.complete(check_upload_set(upload_set), request_id)

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Make blobs a job's own; see `Blobs.submit`."""
        keys = tuple(check_blob_key(key) for key in blob_keys)
        self._apply(
            SubmitJob(
                job_id=_check_job(job_id), blob_keys=keys, destination=destination, commit_job=commit_job
            )
        )

    def refer(self, job_id: str, blob_key: BlobKey, owner: str, *, lapse_s: float | None = None) -> None:
        """Keep a blob for an owner; see `Blobs.refer`."""
        self._apply(TakeReference(job_id=job_id, blob_key=blob_key, owner=owner, lapse_s=lapse_s))

    def drop(self, job_id: str, blob_key: BlobKey, owner: str) -> None:
        """End an owner's reference; see `Blobs.drop`."""
        is_idle = self._apply(DropReference(job_id=job_id, blob_key=blob_key, owner=owner))
        if is_idle:
            delete_logs(self, [(job_id, blob_key)])

    def drop_owner(self, owner: str, *, taken_by_s: float = math.inf) -> int:
        """End all references of an owner that were taken by a moment; see `Blobs.drop_owner`."""
        with self.journal.reading() as reading:
            found = [one for one in owned_by(reading, owner) if one.taken_s <= taken_by_s]
        for page in in_pages(iter(found), PAGE):  # so that who else writes need not wait for all of them
            keys = [(one.job_id, one.blob_key) for one in page]
            self.journal.write(
                [Mutation(op=DropReference(job_id=job, blob_key=key, owner=owner)) for job, key in keys]
            )
            delete_logs(self, keys)
        return len(found)

    def fail(self, job_id: str) -> None:
        """Let go what can be made again; see `Blobs.fail`."""
        self._apply(FailJob(job_id=_check_job(job_id)))

    def finish(self, job_id: str) -> None:
        """End a job and delete its folders; see `Blobs.finish`. The sweep forgets its rows."""
        ended = FinishJob(job_id=_check_job(job_id))
        refuse_in_safe_mode(self.journal, f"ending job {job_id} and deleting its blobs")
        self._apply(ended)
        self.delete_job(job_id)

    def delete_job(self, job_id: str) -> None:
        """Delete the folders of a job that has ended, local and HA; see `ended_jobs`.

        Raises:
            StoreUnavailableError: Some bytes were left; the next sweep deletes them.
        """
        goes = partial(that_go, self.journal, job_id)
        with step("blob-finish"):
            self.local.delete_listed(job_id, goes)
            left = 0 if self.ha is None else self.ha.delete_listed(job_id, goes)
        if left:
            raise StoreUnavailableError(
                f"blobs of job {job_id}, which has ended: the HA store kept {left} of them; the next sweep "
                "deletes them"
            )

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return what is known of a page of blobs; see `Blobs.page`."""
        with self.journal.reading() as reading:
            return blobs_of(reading, job_id, after=after)

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return a page of the jobs that have blobs; see `Blobs.jobs`."""
        with self.journal.reading() as reading:
            return jobs_of(reading, job_id, after=after)

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return what keeps blobs; see `Blobs.references`."""
        with self.journal.reading() as reading:
            return references_of(reading, job_id=job_id, blob_key=blob_key, owner=owner)

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> SweepReport:
        """Delete what nothing keeps; see `Blobs.sweep`."""
        return sweep(self, dry_run=dry_run, orphans=orphans, progress=progress)

    def verify(
        self,
        job_id: str | None = None,
        *,
        after: tuple[str, str] = ("", ""),
        deep: bool = False,
        heal: bool = False,
    ) -> Verified:
        """Look whether blobs have their bytes; see `Blobs.verify`."""
        return verify(self, job_id, after=after, deep=deep, heal=heal)

    def close(self) -> None:
        """Complete this server's own upload set, so that nothing of it is kept; others lapse."""
        self.sets.close()
        self.presence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _apply(self, op: Op) -> Any:
        return self.journal.apply(op).result


def _check_job(job_id: str) -> str:
    """Return the id of a job, which begins, fails and ends.

    Raises:
        InvalidInputError: It is of blobs that belong to no job: others' blobs would go.
    """
    if check_blob_job(job_id) == NO_JOB:
        raise InvalidInputError(
            f"{NO_JOB} is no job: it neither begins nor fails nor ends; nothing was changed; take and drop "
            "references instead"
        )
    return job_id
