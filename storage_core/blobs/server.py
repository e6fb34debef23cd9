"""The blob server: takes blobs in, hands them out, owns what stands in its local store and in the HA store.

    put    incoming file → local store, synced → HA store → row in the journal → acknowledged
    get    local store, verified → else refilled from the HA store

Bytes come before the row: a crash between leaves bytes that no row knows and whose upload set lapses, which
the sweep finds. A row without bytes never stands.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from storage_core.blobs.arriving import Arriving
from storage_core.blobs.at_once import delete_logs
from storage_core.blobs.ha import HaBlobs
from storage_core.blobs.ha_upload import HaUpload
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
    new_upload_set,
    upload_set_of,
)
from storage_core.blobs.local import CHUNK, Incoming, LocalBlobs
from storage_core.blobs.orphans import LastListing
from storage_core.blobs.protocol import BlobInfo, NewBlob, Source
from storage_core.blobs.reports import SweepReport, Verified
from storage_core.blobs.sweep import sweep
from storage_core.blobs.verify import verify
from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    ConflictError,
    CorruptBlobError,
    FencedError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from storage_core.failpoints import step
from storage_core.journal import Journal, Mutation, Outcome, Refused, Stamp
from storage_core.journal.blob_rows import PAGE, blobs_of, owned_by, references_of
from storage_core.journal.forks import FORKS, Forkable
from storage_core.journal.leases import Leases
from storage_core.journal.ops import Op
from storage_core.journal.ops.leases import DropLease, FreeLease, TakeLease
from storage_core.journal.ops.references import (
    DropReference,
    FailJob,
    FinishJob,
    SubmitJob,
    TakeReference,
)
from storage_core.journal.ops.uploads import BeginUpload, CompleteUpload, PutBlob, upload_resource
from storage_core.journal.renewer import Renewer
from storage_core.journal.rows import Blob, BlobJob, BlobUse, Guarantee, Reference, UploadSet
from storage_core.journal.safe_mode import refuse_in_safe_mode
from storage_core.journal.values import check_values
from storage_core.parallel import Progress, no_progress
from storage_core.stores.local_errors import translated
from storage_core.stores.pages import in_pages

RENEW_S: Final = 20.0
SOFT_S: Final = 60.0
HARD_S: Final = 1_200.0
"""Of the leases of upload sets: an uploader of which nothing was heard for so long is gone."""
RETENTION_S: Final = 1_800.0


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A blob whose bytes stand in every store, and that no row knows yet."""

    blob: PutBlob
    request_id: str | None

    @property
    def mutation(self) -> Mutation:
        """What records it."""
        if self.request_id is None:
            return Mutation(op=self.blob)
        return Mutation(op=self.blob, request_id=f"{self.request_id}@{self.blob.job_id}")


class BlobServer(Forkable):
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
        self.local = local
        self.ha = ha
        self.journal = journal
        self.retention_s = retention_s
        self._clock = clock or SystemClock()
        self._leases = Leases(journal)
        self._renewer = Renewer(self._leases, every_s=RENEW_S, clock=self._clock)
        self.forked()
        FORKS.tell(self)

    def forked(self) -> None:
        """Begin without a set of one's own: the parent's is the parent's to renew and to complete."""
        self._opening = threading.Lock()
        self._own: UploadSetId | None = None

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set whose lease this server renews; see `Blobs.begin_set`."""
        return self._begin(check_blob_job(job_id))

    def begin_set_of(self, holder: str, job_id: str) -> tuple[UploadSetId, Stamp]:
        """Open an upload set for an uploader that is another process, and renews its lease itself.

        Args:
            holder: The uploader.
            job_id: Of the job that the blobs are for.

        Returns:
            The set, and the stamp with which it is to be renewed.
        """
        return self._take_set(holder, check_blob_job(job_id))

    def renew_sets(self, holder: str, held: Mapping[UploadSetId, Stamp]) -> dict[UploadSetId, str]:
        """Renew the leases of an uploader that is another process; returns a word about each that is lost."""
        names = {upload_resource(check_upload_set(upload_set)): upload_set for upload_set in held}
        lost = self._leases.renew(
            holder, {resource: held[upload_set] for resource, upload_set in names.items()}
        )
        return {names[resource]: words for resource, words in lost.items()}

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
        with self.arriving(job_id, new, size_bytes=_size_of(source)) as arriving:
            for chunk in chunks_of(source):
                arriving.write(chunk)
            return self.keep(arriving, job_id, new)

    @contextmanager
    def arriving(self, job_id: str, new: NewBlob, *, size_bytes: int | None = None) -> Iterator[Arriving]:
        """Hold what takes a blob's bytes; nothing of them stays after the block, unless they were kept.

        If their digest is told, they go on to the HA store while they come: their key is known.

        Args:
            job_id: Of the job that they belong to.
            new: What is said of them.
            size_bytes: How many they are; None: their end tells.
        """
        check_blob_job(job_id)
        with self.local.incoming() as incoming:
            if self.ha is None or new.guarantee != "ha" or new.digest is None or size_bytes is None:
                yield Arriving(incoming)
                return
            blob_key = new_blob_key(check_digest(new.digest), self._set_for(new))
            with self._uploading(self.ha, incoming, size_bytes, job_id, blob_key) as upload:
                yield Arriving(incoming, (blob_key, upload))

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
        blob_key = new_blob_key(incoming.digest, self._set_for(new)) if ahead is None else ahead[0]
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
        complete = CompleteUpload(upload_set=check_upload_set(upload_set))
        count: int = self._apply(complete, request_id)
        self._renewer.drop(upload_resource(upload_set))
        return count

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

    def drop_owner(self, owner: str) -> int:
        """End all references of an owner; see `Blobs.drop_owner`."""
        with self.journal.reading() as reading:
            found = owned_by(reading, owner)
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
        """Delete the folders of a job that has ended, local and HA.

        Raises:
            StoreUnavailableError: Some bytes were left; the next sweep deletes them.
        """
        with step("blob-finish"):
            self.local.delete_job(job_id)
            left = 0 if self.ha is None else self.ha.delete_job(job_id)
        if left:
            raise StoreUnavailableError(
                f"blobs of job {job_id}, which has ended: the HA store kept {left} of them; the next sweep "
                "deletes them"
            )

    def path(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the path of a blob's verified file, refilled from the HA store if need be.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
        """
        damaged: CorruptBlobError | None = None
        try:
            return self.local.verified(job_id, blob_key)
        except CorruptBlobError as error:
            damaged = error
        except ObjectNotFoundError:
            pass
        try:
            if self.ha is not None:
                return self._refilled(self.ha, job_id, blob_key)
        except ObjectNotFoundError:
            pass
        if damaged is not None:
            raise damaged
        raise ObjectNotFoundError(
            f"blob {job_id}/{blob_key}: neither the local store nor the HA store has it; "
            "it was deleted, or never put"
        )

    def recheck(self, job_id: str, blob_key: BlobKey) -> None:
        """Read a blob's file again, and heal it, for somebody has received other bytes; raises as `path`."""
        self.local.forget_verified(job_id, blob_key)
        self.path(job_id, blob_key)

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to another local store; see `Blobs.fetch`."""
        path = self.path(job_id, blob_key)
        try:
            return _copied(path, local, job_id, blob_key)
        except CorruptBlobError:  # damaged without a trace since it was verified
            self.local.forget_verified(job_id, blob_key)
            return _copied(self.path(job_id, blob_key), local, job_id, blob_key)

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return a blob's bytes; see `Blobs.get`."""
        for _ in range(2):
            data = _read(self.path(job_id, blob_key))
            if hashlib.sha256(data).hexdigest() == digest_of(blob_key):
                return data
            self.local.forget_verified(job_id, blob_key)
        raise CorruptBlobError(
            f"blob {job_id}/{blob_key} in {self.local.path} reads otherwise than when it was verified; "
            "nothing was handed out; see to this machine's disk and memory"
        )

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return what is known of a page of blobs; see `Blobs.page`."""
        with self.journal.reading() as reading:
            return blobs_of(reading, job_id, after=after)

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
        with self._opening:
            own, self._own = self._own, None
        if own is not None:
            with suppress(LockgateError):
                self.complete_set(own)
        self._renewer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set_for(self, new: NewBlob) -> UploadSetId:
        """Return the upload set that a blob is put under."""
        return self._own_set() if new.upload_set is None else check_upload_set(new.upload_set)

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
                error = self._refusal(blob, outcome.error)
                self._discard(blob)
                return error
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

    def _refilled(self, ha: HaBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob from the HA store, unless it goes: its sweep may have passed here already.

        Raises:
            ObjectNotFoundError: It is not there, or goes.
        """
        path = ha.fill(self.local, job_id, blob_key)
        if self._goes(job_id, blob_key):
            self.local.delete(job_id, blob_key)
            self.local.drop_empty(job_id)
            raise ObjectNotFoundError(f"blob {job_id}/{blob_key} is being deleted: nothing refers to it")
        return path

    def _goes(self, job_id: str, blob_key: BlobKey) -> bool:
        """Tell whether a blob is being deleted; where nobody knows, it is not."""
        try:
            with self.journal.reading() as reading:
                if reading.status().safe_since_s is not None:
                    return False
                blob, job = reading.get(Blob, job_id, blob_key), reading.get(BlobJob, job_id)
        except LockgateError:  # a get needs no journal; the next listing finds what should not be here
            LastListing(self.local.path).forget()
            return False
        return blob is None or blob.deleting_s is not None or (job is not None and job.final_s is not None)

    def _leave(self, upload_set: UploadSetId) -> None:
        """Leave bytes of which nobody knows whether they were recorded to the sweep.

        It takes them when their set is closed: this server's own is used no more, and lapses.
        """
        with self._opening:
            is_own = self._own == upload_set
            if is_own:
                self._own = None
        if is_own:
            self._renewer.drop(upload_resource(upload_set))
        LastListing(self.local.path).forget()

    def _refusal(self, blob: PutBlob, error: LockgateError) -> LockgateError:
        """Return why a blob was not recorded: it is not its sender's fault that this server's set lapsed."""
        if (
            not isinstance(error, FencedError)
            or blob.joins
            or not self._has_lost(UploadSetId(blob.upload_set))
        ):
            return error
        return StoreUnavailableError(
            f"blob {blob.job_id}/{blob.blob_key}: this server's own upload set {blob.upload_set} had "
            "lapsed; nothing was kept; put the bytes again: it opens another set"
        )

    def _has_lost(self, own: UploadSetId) -> bool:
        """Tell whether this server's own set was given up; if so, the next put opens another one."""
        with self.journal.reading() as reading:
            if reading.get(UploadSet, own) is not None:
                return False
        with self._opening:
            if self._own == own:
                self._own = None
        return True

    def _own_set(self) -> UploadSetId:
        """Return the set for single blobs of any job, open."""
        with self._opening:
            if self._own is None:
                self._own = self._begin("")
            return self._own

    def _begin(self, job_id: str) -> UploadSetId:
        since_s = self._clock.now_s()
        upload_set, stamp = self._take_set(self._renewer.holder, job_id)
        self._renewer.keep(upload_resource(upload_set), stamp, since_s=since_s)
        return upload_set

    def _take_set(self, holder: str, job_id: str) -> tuple[UploadSetId, Stamp]:
        upload_set = new_upload_set()
        resource = upload_resource(upload_set)
        lease = TakeLease(resource=resource, holder=holder, purpose="write", soft_s=SOFT_S, hard_s=HARD_S)
        taken, begun = self.journal.write(
            [Mutation(op=lease), Mutation(op=BeginUpload(upload_set=upload_set, job_id=job_id))]
        )
        if isinstance(taken, Refused):
            raise taken.error
        stamp: Stamp = taken.result.stamp
        if isinstance(begun, Refused):
            self.journal.write(
                [
                    Mutation(op=FreeLease(resource=resource, stamp=stamp)),
                    Mutation(op=DropLease(resource=resource)),
                ]
            )
            raise begun.error
        return upload_set, stamp

    def _apply(self, op: Op, request_id: str | None = None) -> Any:
        return self.journal.apply(op, request_id).result


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


def _read(path: Path) -> bytes:
    with translated("read", str(path), changes=False):
        return path.read_bytes()


def _copied(path: Path, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
    with local.incoming() as incoming:
        with translated("read", str(path), changes=False), path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                incoming.write(data)
        return local.place(incoming, job_id, blob_key)


def _size_of(source: Source) -> int | None:
    """Return how many bytes a source has, None if its end tells."""
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, Path):
        with translated("read", str(source), changes=False):
            return source.stat().st_size
    return None


def chunks_of(source: Source) -> Iterator[bytes]:
    """Yield a source's bytes, in bounded pieces."""
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, Path):
        with source.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                yield data
    else:
        yield from source
