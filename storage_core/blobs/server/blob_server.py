"""The blob server: it puts, reads and deletes blobs in its local store and in the HA store.

References to blobs, upload sets and the ends of jobs are entries of the journal.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, Unpack

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, PutOptions
from lockgate.storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_blob_key,
    check_upload_set,
)
from lockgate.storage_core.blobs.registry.blob_rows import Blob, Reference
from lockgate.storage_core.blobs.registry.queries import (
    PAGE,
    JobBlobs,
    blobs_of,
    jobs_of,
    references_of,
    releases_of,
)
from lockgate.storage_core.blobs.registry.references import (
    DropReference,
    FinishBlobJob,
    SubmitBlobJob,
    TakeReference,
    gone,
)
from lockgate.storage_core.blobs.registry.removals import ForgetBlob, MarkDeleting
from lockgate.storage_core.blobs.reports import BlobSweepReport, VerifiedPage
from lockgate.storage_core.blobs.server.ingest import BlobIngest
from lockgate.storage_core.blobs.server.open_upload_sets import UploadSets, saying_what_stands
from lockgate.storage_core.blobs.server.reader import BlobReader
from lockgate.storage_core.blobs.sources import Source
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores, StoreOwner
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.blobs.sweep.ended_jobs import deletable
from lockgate.storage_core.blobs.sweep.sweep import sweep
from lockgate.storage_core.blobs.sweep.verify_copies import verify
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError, LockgateError, StoreUnavailableError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal import Journal, Mutation, Stamp
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.stores.protocol import in_pages

RETENTION_S: Final = 1_800.0


class BlobServer:
    """Blobs in a local store and, optionally, an HA store. See `Blobs` for the methods.

    Use it as a context manager, or `close` it, which completes its upload set.

    Attributes:
        stores: Stores and journal.
        sets: Upload sets.
        ingest: Receives blobs.
        reader: Reads blobs.
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
        owner = StoreOwner(local, ha, journal)
        self.stores = BlobStores(local, ha, journal, owner, retention_s)
        self.sets = UploadSets(journal, clock or SystemClock(), own_max_age_s=retention_s)
        self.ingest = BlobIngest(self.stores, self.sets)
        self.reader = BlobReader(self.stores)
        self._journal = journal

    def put(self, source: Source, *, job_id: str = NO_JOB, **options: Unpack[PutOptions]) -> BlobInfo:
        """Put bytes; see `Blobs.put`."""
        return self.ingest.put(source, job_id=job_id, **options)

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return a blob's bytes; see `Blobs.get`."""
        return self.reader.get(job_id, blob_key)

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to another local store; see `Blobs.fetch`."""
        return self.reader.fetch(local, job_id, blob_key)

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set whose lease this server renews; see `Blobs.begin_set`."""
        return self.sets.begin(check_blob_job(job_id))

    def begin_set_of(self, holder: str, job_id: str) -> tuple[UploadSetId, Stamp]:
        """Open an upload set for an uploader in another process; see `UploadSets.take`."""
        return self.sets.take(holder, check_blob_job(job_id))

    def renew_sets(self, holder: str, held: Mapping[UploadSetId, Stamp]) -> dict[UploadSetId, str]:
        """Renew the leases of an uploader in another process; return a message for each one that is lost."""
        return self.sets.renew(holder, held)

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage a set's blobs; see `Blobs.complete_set`."""
        return self.sets.complete(check_upload_set(upload_set), request_id)

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Keep blobs for a job; see `Blobs.submit`."""
        keys = [check_blob_key(key) for key in blob_keys]
        pages = list(in_pages(keys, PAGE)) or [()]
        if len(pages) > 1:
            self._refuse_gone(_check_job(job_id), pages)
        with saying_what_stands() as done:
            for number, page in enumerate(pages, start=1):  # other writers need not wait for all pages
                self._apply(
                    SubmitBlobJob(
                        job_id=_check_job(job_id),
                        blob_keys=page,
                        destination=destination,
                        commit_job=commit_job,
                    )
                )
                done.stands = (
                    f"the first {number * PAGE:,} of {len(keys):,} blobs are kept for job {job_id}, and "
                    "deleted with the job; the others are not kept; if the job has ended, stop, else upload "
                    "what is gone and submit all of them again"
                )

    def refer(self, job_id: str, blob_key: BlobKey, owner: str, *, lapse_s: float | None = None) -> None:
        """Add an owner's reference; see `Blobs.refer`."""
        self._apply(TakeReference(job_id=job_id, blob_key=blob_key, owner=owner, lapse_s=lapse_s))

    def drop(self, job_id: str, blob_key: BlobKey, owner: str) -> None:
        """Drop an owner's reference; see `Blobs.drop`."""
        is_idle = self._apply(DropReference(job_id=job_id, blob_key=blob_key, owner=owner))
        if is_idle:
            delete_logs(self.stores, [(job_id, blob_key)])

    def drop_owner(
        self, owner: str, *, taken_by_s: float = math.inf, jobs: Container[str] | None = None
    ) -> int:
        """Drop an owner's references that were taken up to a time, in some jobs; see `Blobs.drop_owner`."""
        with self._journal.reading() as reading:
            found = [owned for owned in references_of(reading, owner=owner) if owned.taken_s <= taken_by_s]
        if jobs is not None:
            found = [owned for owned in found if owned.job_id in jobs]
        dropped = 0
        with saying_what_stands() as done:
            for page in in_pages(found, PAGE):  # other writers need not wait for all pages
                keys = [(owned.job_id, owned.blob_key) for owned in page]
                self._journal.write(
                    [Mutation(op=DropReference(job_id=job, blob_key=key, owner=owner)) for job, key in keys]
                )
                delete_logs(self.stores, keys)
                dropped += len(page)
                done.stands = (
                    f"{dropped:,} of {len(found):,} references of {owner} were dropped; repeat the call"
                )
        return dropped

    def fail(self, job_id: str) -> None:
        """Release a failed job's recreatable blobs; see `Blobs.fail`."""
        with self._journal.reading() as reading:
            released = list(releases_of(reading, _check_job(job_id)))
        total, count = sum(len(entry.blob_keys) for entry in released), 0
        with saying_what_stands() as done:
            for entry in released:
                self._apply(entry)
                count += len(entry.blob_keys)
                done.stands = f"{count:,} of {total:,} blobs of job {job_id} were released; repeat the call"

    def finish(self, job_id: str) -> None:
        """End a job and delete its blobs; see `Blobs.finish`. The sweep deletes its rows."""
        ended = FinishBlobJob(job_id=_check_job(job_id))
        refuse_in_safe_mode(self._journal, f"ending job {job_id} and deleting its blobs")
        self._apply(ended)
        self.delete_job(job_id)

    def delete_job(self, job_id: str) -> None:
        """Delete the folders of an ended job, local and HA; see `ended_jobs`.

        Raises:
            ConflictError: A store belongs to another journal; its blobs were left alone.
            StoreUnavailableError: Some bytes were left; the next sweep deletes them.
        """
        select = partial(deletable, self._journal, job_id)
        with step("blob-finish"):
            self.stores.owner.claim_local()
            self.stores.local.delete_listed(job_id, select)
            self.stores.owner.claim_ha()
            left = 0 if self.stores.ha is None else self.stores.ha.delete_listed(job_id, select)
        if left:
            raise StoreUnavailableError(
                f"blobs of job {job_id}, which has ended: the HA store kept {left} of them; the next sweep "
                "deletes them"
            )

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return a page of blobs; see `Blobs.page`."""
        with self._journal.reading() as reading:
            return blobs_of(reading, job_id, after=after)

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return a page of the jobs that have blobs; see `Blobs.jobs`."""
        with self._journal.reading() as reading:
            return jobs_of(reading, job_id, after=after)

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return references; see `Blobs.references`."""
        with self._journal.reading() as reading:
            return references_of(reading, job_id=job_id, blob_key=blob_key, owner=owner)

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> BlobSweepReport:
        """Delete blobs that nothing keeps; see `Blobs.sweep`."""
        return sweep(self.stores, dry_run=dry_run, orphans=orphans, progress=progress)

    def verify(
        self,
        job_id: str | None = None,
        *,
        after: tuple[str, str] = ("", ""),
        deep: bool = False,
        heal: bool = False,
    ) -> VerifiedPage:
        """Verify a page of blobs; see `Blobs.verify`."""
        return verify(self.stores, job_id, after=after, deep=deep, heal=heal)

    def close(self) -> None:
        """Complete this server's own upload set; sets of clients lapse if they are not renewed."""
        self.sets.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_gone(self, job_id: str, pages: Iterable[Sequence[BlobKey]]) -> None:
        """Raise if a blob is gone, before a reference to another is taken."""
        with self._journal.reading() as reading:
            for page in pages:
                found = reading.find(Blob, [(job_id, key) for key in page])
                kept = {blob.blob_key for blob in found if blob.deleting_s is None}
                for key in page:
                    if key not in kept:
                        raise gone(job_id, key)

    def _apply(self, op: Op) -> Any:
        return self._journal.apply(op).result


def _check_job(job_id: str) -> str:
    """Return the id of a job, which can be submitted, fail and end, unlike `no_job`."""
    if check_blob_job(job_id) == NO_JOB:
        raise InvalidInputError(
            f"{NO_JOB} is not a job: it cannot be submitted, fail or end; nothing was changed; take and drop "
            "references instead"
        )
    return job_id


def delete_logs(stores: BlobStores, blobs: Sequence[tuple[str, str]]) -> None:
    """Delete the unreferenced logs among blobs, given by job and key; on an error the sweep does it."""
    with suppress(LockgateError), step("blob-log"):  # a refusal in safe mode, too: they are staged
        for blob in _idle_logs(stores, blobs):
            _delete(stores, blob)


def _idle_logs(stores: BlobStores, blobs: Sequence[tuple[str, str]]) -> list[Blob]:
    with stores.journal.reading() as reading:
        found = reading.find(Blob, blobs)
    return [
        blob
        for blob in found
        if blob.use == "log" and blob.guarantee == "recreatable" and blob.staged_s is not None
    ]


def _delete(stores: BlobStores, blob: Blob) -> None:
    job_id, blob_key = blob.job_id, check_blob_key(blob.blob_key)
    mark = MarkDeleting(job_id=job_id, blob_key=blob_key, staged_for_s=0.0)
    if stores.journal.apply(mark).result:
        stores.local.delete(job_id, blob_key)
        stores.local.drop_empty(job_id)
        stores.journal.apply(ForgetBlob(job_id=job_id, blob_key=blob_key))
