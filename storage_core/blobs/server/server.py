"""The blob server: takes blobs in, hands them out, owns what stands in its local store and in the HA store.

    put    incoming file → local store, synced → HA store → row in the journal → acknowledged: `taking_in`
    get    local store, verified → else refilled from the HA store: `handing_out`

What keeps blobs, and what ends them, are entries of the journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, Unpack

from lockgate.storage_core.blobs.keys import (
    NO_JOB,
    BlobKey,
    UploadSetId,
    check_blob_job,
    check_blob_key,
    check_upload_set,
)
from lockgate.storage_core.blobs.protocol import BlobInfo, PutOptions
from lockgate.storage_core.blobs.registry.queries import (
    PAGE,
    JobBlobs,
    blobs_of,
    jobs_of,
    owned_by,
    references_of,
)
from lockgate.storage_core.blobs.registry.references import (
    DropReference,
    FailBlobJob,
    FinishBlobJob,
    SubmitBlobJob,
    TakeReference,
)
from lockgate.storage_core.blobs.registry.rows import Blob, Reference
from lockgate.storage_core.blobs.reports import BlobSweepReport, VerifiedPage
from lockgate.storage_core.blobs.server.ingest import BlobIngest
from lockgate.storage_core.blobs.server.serve import BlobReader
from lockgate.storage_core.blobs.server.upload_sets import UploadSets
from lockgate.storage_core.blobs.sources import Source
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.holdings import Holdings
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.blobs.storage.server_liveness import Liveness
from lockgate.storage_core.blobs.sweep.ended_jobs import deletable
from lockgate.storage_core.blobs.sweep.expired_logs import delete_logs
from lockgate.storage_core.blobs.sweep.sweep import sweep
from lockgate.storage_core.blobs.sweep.verify import verify
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal import Journal, Mutation, Stamp
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.stores.pagination import in_pages

RETENTION_S: Final = 1_800.0


class BlobServer:
    """Blobs over a local store, an HA store if there is one, and a journal. See `Blobs` for its calls.

    Use it as a context manager, or `close` it: its own upload set is completed then.

    Args:
        local: Its files; no other server's.
        ha: None: the local store is all that there is.
        journal: Knows the blobs and what keeps them; stays open.
        retention_s: An unreferenced blob lives one to two of these.
        clock: Waits between renewals; the machine's by default.

    Attributes:
        holdings: The stores and the journal.
        sets: Its upload sets.
        ingest: Takes blobs in.
        reader: Reads them.
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
        self.holdings = Holdings(local, ha, journal, Liveness(local.path), retention_s)
        self.sets = UploadSets(journal, clock or SystemClock(), own_lasts_s=retention_s)
        self.ingest = BlobIngest(self.holdings, self.sets)
        self.reader = BlobReader(self.holdings)
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

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage a set's blobs; see `Blobs.complete_set`."""
        return self.sets.complete(check_upload_set(upload_set), request_id)

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Make blobs a job's own; see `Blobs.submit`."""
        keys = tuple(check_blob_key(key) for key in blob_keys)
        self._apply(
            SubmitBlobJob(
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
            delete_logs(self.holdings, [(job_id, blob_key)])

    def drop_owner(self, owner: str, *, taken_by_s: float = math.inf) -> int:
        """End all references of an owner that were taken by a moment; see `Blobs.drop_owner`."""
        with self._journal.reading() as reading:
            found = [one for one in owned_by(reading, owner) if one.taken_s <= taken_by_s]
        for page in in_pages(iter(found), PAGE):  # so that who else writes need not wait for all of them
            keys = [(one.job_id, one.blob_key) for one in page]
            self._journal.write(
                [Mutation(op=DropReference(job_id=job, blob_key=key, owner=owner)) for job, key in keys]
            )
            delete_logs(self.holdings, keys)
        return len(found)

    def fail(self, job_id: str) -> None:
        """Let go what can be made again; see `Blobs.fail`."""
        self._apply(FailBlobJob(job_id=_check_job(job_id)))

    def finish(self, job_id: str) -> None:
        """End a job and delete its folders; see `Blobs.finish`. The sweep forgets its rows."""
        ended = FinishBlobJob(job_id=_check_job(job_id))
        refuse_in_safe_mode(self._journal, f"ending job {job_id} and deleting its blobs")
        self._apply(ended)
        self.delete_job(job_id)

    def delete_job(self, job_id: str) -> None:
        """Delete the folders of a job that has ended, local and HA; see `ended_jobs`.

        Raises:
            StoreUnavailableError: Some bytes were left; the next sweep deletes them.
        """
        goes = partial(deletable, self._journal, job_id)
        with step("blob-finish"):
            self.holdings.local.delete_listed(job_id, goes)
            left = 0 if self.holdings.ha is None else self.holdings.ha.delete_listed(job_id, goes)
        if left:
            raise StoreUnavailableError(
                f"blobs of job {job_id}, which has ended: the HA store kept {left} of them; the next sweep "
                "deletes them"
            )

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return what is known of a page of blobs; see `Blobs.page`."""
        with self._journal.reading() as reading:
            return blobs_of(reading, job_id, after=after)

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return a page of the jobs that have blobs; see `Blobs.jobs`."""
        with self._journal.reading() as reading:
            return jobs_of(reading, job_id, after=after)

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return what keeps blobs; see `Blobs.references`."""
        with self._journal.reading() as reading:
            return references_of(reading, job_id=job_id, blob_key=blob_key, owner=owner)

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> BlobSweepReport:
        """Delete what nothing keeps; see `Blobs.sweep`."""
        return sweep(self.holdings, dry_run=dry_run, orphans=orphans, progress=progress)

    def verify(
        self,
        job_id: str | None = None,
        *,
        after: tuple[str, str] = ("", ""),
        deep: bool = False,
        heal: bool = False,
    ) -> VerifiedPage:
        """Look whether blobs have their bytes; see `Blobs.verify`."""
        return verify(self.holdings, job_id, after=after, deep=deep, heal=heal)

    def close(self) -> None:
        """Complete this server's own upload set, so that nothing of it is kept; others lapse."""
        self.sets.close()
        self.holdings.liveness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _apply(self, op: Op) -> Any:
        return self._journal.apply(op).result


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
