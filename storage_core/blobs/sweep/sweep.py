"""Sweep of the blobs: delete those that had no reference for a whole retention interval.

    lapsed references                       drop: their blobs may become staged
    upload sets whose uploaders are gone    abandon: their blobs become staged
    ended jobs                              delete their folders, whatever references there are
    blobs staged an interval ago            mark: no reference can be taken from now on
    marked blobs                            delete their bytes in both stores, then their rows
    bytes without a row                     stage, if a listing of the stores is due: see `orphans`

A blob is staged by the entry that drops its last reference. If a sweep runs each interval, an unreferenced
blob is kept for one to two intervals; concurrent or frequent sweeps delete nothing earlier. Each step can be
interrupted and repeated: a row exists until its bytes are deleted.

Uploads that no job will complete are swept by `commit/recovery/upload_sweep.py`.
Source: Flink BLOB storage, "Staged Cleanup".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, UploadSet
from lockgate.storage_core.blobs.registry.queries import (
    PAGE,
    blobs_of,
    deleting,
    every_staged,
    final_jobs,
    lapsed_count,
    lapsed_references,
    staged_before,
)
from lockgate.storage_core.blobs.registry.references import LapseReference
from lockgate.storage_core.blobs.registry.removals import (
    ForgetBlob,
    ForgetBlobJob,
    MarkDeleting,
)
from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload
from lockgate.storage_core.blobs.reports import BlobSweepReport, Tally, Why
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores
from lockgate.storage_core.blobs.sweep.ended_jobs import deletable
from lockgate.storage_core.blobs.sweep.lapsed_sets import in_steps, lapsed_sets, remember
from lockgate.storage_core.blobs.sweep.orphans import find_orphans
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import (
    ConflictError,
    JournalUnavailableError,
    LockgateError,
    SafeModeError,
    StateLostError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.journal import Mutation, Refused
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.stores.protocol import in_pages

FOLDERS_AT_ONCE: Final = 8

T = TypeVar("T")


def sweep(
    stores: BlobStores,
    *,
    dry_run: bool,
    orphans: bool | None = None,
    progress: Progress = no_progress,
) -> BlobSweepReport:
    """Delete blobs that nothing keeps; see `Blobs.sweep`.

    Safe to run concurrently with other sweeps and all other calls. Blobs that a store kept, or gave no answer
    about, stay marked for the next sweep, and are reported. A dry run is allowed in safe mode.

    Raises:
        SafeModeError: The journal is in safe mode; nothing was deleted.
        JournalUnavailableError: The journal became unreachable; completed steps stay done.
        OutcomeUnknownError: The journal gave no answer; the next sweep continues.

    Source: Flink BLOB storage, "Staged Cleanup".
    """
    with step("blob-sweep"):
        if dry_run:
            return dry_run_sweep(stores, orphans=orphans, progress=progress)
        refuse_in_safe_mode(stores.journal, "sweeping blobs")
        return _Sweep(stores, progress).run(orphans=orphans)


class _Sweep:
    """One sweep under way."""

    def __init__(self, stores: BlobStores, progress: Progress) -> None:
        self._stores = stores
        self._journal = stores.journal
        self._progress = progress
        self._tally = Tally()
        self._ha_is_away = False
        self._began_s = self._read(Reading.now_s)
        self._epoch = self._read(Reading.status).stamp.epoch

    def run(self, *, orphans: bool | None) -> BlobSweepReport:
        """Run every step in order."""
        lapsed = self._drop_lapsed()
        abandoned = self._abandon_sets()
        final, forgotten = self._end_jobs()
        self._mark_staged()
        self._delete_marked()
        self._stores.local.delete_abandoned()
        listing = self._stores.listing_time
        is_due = listing.is_due(self._began_s, self._epoch) if orphans is None else orphans
        aborted = self._find_orphans() if is_due else None
        return BlobSweepReport(
            is_dry_run=False,
            lapsed_references=lapsed,
            abandoned_sets=abandoned,
            swept=self._tally.swept,
            final_jobs=final,
            forgotten_jobs=forgotten,
            aborted_uploads=aborted or 0,
            sought_orphans=aborted is not None,
            blobs=tuple(self._tally.blobs),
            left=self._tally.left,
            problems=tuple(self._tally.problems),
        )

    def _drop_lapsed(self) -> int:
        dropped = 0
        for page in self._pages(lambda reading: lapsed_references(reading, self._began_s)):
            self._write(
                [LapseReference(job_id=row.job_id, blob_key=row.blob_key, owner=row.owner) for row in page]
            )
            dropped += len(page)
        return dropped

    def _abandon_sets(self) -> int:
        lapsed, alive = self._read(partial(lapsed_sets, self._stores))
        remember(self._stores, alive)
        if lapsed:  # first: a sweep that dies in between must not leave their bytes to the daily listing
            self._stores.listing_time.forget()
        return sum(map(self._abandon_set, lapsed))

    def _abandon_set(self, lapsed: AbandonUpload) -> bool:
        """Give up a set, a page of its blobs in each transaction; return whether its uploader was gone."""
        for op in self._read(partial(in_steps, lapsed=lapsed)):
            (result,) = self._write([op])
            if result is None:  # it has renewed its lease
                return False
        return True

    def _end_jobs(self) -> tuple[int, int]:
        """Delete the blobs of ended jobs; return the number of these jobs, and of those forgotten now."""
        jobs = self._read(final_jobs)
        done = forgotten = 0
        for job, problem in in_parallel(self._delete_folders, jobs, FOLDERS_AT_ONCE):
            if problem is None:
                continue
            if problem:
                self._tally.add_left(0, f"blobs of job {job.job_id}, which has ended: {problem}")
                continue
            done += 1
            forgotten += self._forget_job(job)
            self._progress("ended jobs", done, len(jobs))
        return done, forgotten

    def _delete_folders(self, job: BlobJob) -> tuple[BlobJob, str | None]:
        """Delete an ended job's blobs; return why some are left, or None if another sweep forgot the job."""
        if self._read(lambda reading: reading.get(BlobJob, job.job_id)) != job:
            return job, None
        ha, select = self._stores.ha, partial(deletable, self._journal, job.job_id)
        try:
            self._stores.owner.claim_local()
            self._stores.local.delete_listed(job.job_id, select)
        except LockgateError as error:
            return job, str(error)
        if ha is None:
            return job, ""
        if self._ha_is_away:
            return job, f"{ha.store.url} is unreachable"
        try:
            self._stores.owner.claim_ha()
            left = ha.delete_listed(job.job_id, select)
        except LockgateError as error:
            self._ha_is_away = True
            return job, str(error)
        return job, f"{ha.store.url} kept {left} of them" if left else ""

    def _forget_job(self, job: BlobJob) -> bool:
        for page in self._pages(lambda reading: blobs_of(reading, job.job_id)):
            results = self._write([op for blob in page for op in self._removal(blob)])
            marked = results[::2]
            self._count(Why.FINAL, [blob for blob, is_marked in zip(page, marked, strict=True) if is_marked])
        if self._read(lambda reading: _is_being_uploaded_for(reading, job)):
            return False
        (is_gone,) = self._write([ForgetBlobJob(job_id=job.job_id, final_for_s=self._stores.retention_s)])
        return bool(is_gone)

    def _removal(self, blob: Blob) -> tuple[MarkDeleting, ForgetBlob]:
        """Return the entries that delete the row of an ended job's blob, but not of a new job with its id."""
        interval_s = self._stores.retention_s
        return (
            MarkDeleting(job_id=blob.job_id, blob_key=blob.blob_key, staged_for_s=interval_s),
            ForgetBlob(job_id=blob.job_id, blob_key=blob.blob_key),
        )

    def _mark_staged(self) -> None:
        interval_s = self._stores.retention_s
        for page in self._pages(lambda reading: staged_before(reading, self._began_s - interval_s)):
            self._write(
                [
                    MarkDeleting(job_id=blob.job_id, blob_key=blob.blob_key, staged_for_s=interval_s)
                    for blob in page
                ]
            )

    def _delete_marked(self) -> None:
        """Delete the bytes of all marked blobs, including those that an interrupted sweep marked."""
        page: Sequence[Blob] = ()
        while page := self._read(partial(deleting, after=page[-1] if page else None)):
            refuse_in_safe_mode(self._journal, "deleting marked blobs")
            gone = self._without_bytes(page)
            self._write([ForgetBlob(job_id=blob.job_id, blob_key=blob.blob_key) for blob in gone])
            ours = [blob for blob in gone if (blob.deleting_s or 0.0) >= self._began_s]
            self._count(Why.STAGED, ours)
            self._count(Why.MARKED, [blob for blob in gone if (blob.deleting_s or 0.0) < self._began_s])

    def _without_bytes(self, page: Sequence[Blob]) -> list[Blob]:
        """Delete blobs in the local store, then in bulk in the HA store; return those that are gone."""
        local = self._stores.local
        gone = []
        for blob in page:
            try:
                local.delete(blob.job_id, BlobKey(blob.blob_key))
                gone.append(blob)
            except LockgateError as error:
                self._tally.add_left(1, str(error))
        for job_id in {blob.job_id for blob in gone}:
            local.drop_empty(job_id)
        FAILPOINTS.hit("blob-sweep.local-delete.after")
        left = self._left_in_ha([blob for blob in gone if blob.guarantee == "ha"])
        return [blob for blob in gone if blob.key not in left]

    def _left_in_ha(self, blobs: Sequence[Blob]) -> set[tuple[Any, ...]]:
        ha = self._stores.ha
        if ha is None or not blobs:
            return set()
        keys = [(blob.job_id, BlobKey(blob.blob_key)) for blob in blobs]
        left: Sequence[tuple[str, BlobKey]] = keys
        problem = f"{ha.store.url} kept blobs that were to be deleted"
        if not self._ha_is_away:
            try:
                left = ha.delete(keys)
            except LockgateError as error:  # even if the outcome is unknown: they stay marked
                self._ha_is_away, problem = True, str(error)
        if left:
            self._tally.add_left(len(left), problem)
        return set(left)

    def _find_orphans(self) -> int | None:
        """Return the number of uploads aborted, None if the stores could not be listed."""
        try:
            return find_orphans(self._stores, self._tally, dry_run=False, progress=self._progress)
        except (JournalUnavailableError, SafeModeError, StateLostError):
            raise
        except LockgateError as error:
            self._tally.add_left(0, f"listing the stores for bytes without a row: {error}")
            return None

    def _count(self, why: Why, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            self._tally.take(why, blob.job_id, blob.blob_key, blob.size_bytes)
        if blobs:
            self._progress("delete", sum(amount.blobs for amount in self._tally.swept.values()), 0)

    def _pages(self, query: Callable[[Reading], Sequence[T]]) -> Iterator[Sequence[T]]:
        """Repeat a query whose rows the caller removes, until there are none or they no longer change."""
        before: Sequence[T] = ()
        while (page := self._read(query)) and page != before:
            yield page
            before = page

    def _read(self, query: Callable[[Reading], T]) -> T:
        with self._journal.reading() as reading:
            return query(reading)

    def _write(self, ops: Sequence[Op]) -> list[Any]:
        """Write entries, a page in each transaction; return the result of each, None if it conflicted."""
        results = []
        for page in in_pages(ops, PAGE):
            for outcome in self._journal.write([Mutation(op=op) for op in page]):
                if isinstance(outcome, Refused) and not isinstance(outcome.error, ConflictError):
                    raise outcome.error
                results.append(None if isinstance(outcome, Refused) else outcome.result)
        return results


def _is_being_uploaded_for(reading: Reading, job: BlobJob) -> bool:
    """Return whether a put that began before a job's end, maybe in a server's own set, may be recorded."""
    own = reading.where(UploadSet, {"job_id": ""})
    return bool(reading.where(UploadSet, {"job_id": job.job_id})) or any(
        job.final_s is not None and row.began_s <= job.final_s for row in own
    )


def dry_run_sweep(stores: BlobStores, *, orphans: bool | None, progress: Progress) -> BlobSweepReport:
    """Report what a sweep would do now; see `Blobs.sweep`. A later sweep would delete what it would stage."""
    tally = Tally()
    with stores.journal.reading() as reading:
        reading.stay_open()
        now_s = reading.now_s()
        ended = [job.job_id for job in final_jobs(reading)]
        for job_id in ended:
            _count(tally, Why.FINAL, _blobs_of(reading, job_id))
        ended_jobs = frozenset(ended)
        _count(tally, Why.STAGED, every_staged(reading, now_s - stores.retention_s), excluded=ended_jobs)
        _count(tally, Why.MARKED, _marked(reading), excluded=ended_jobs)
        lapsed = lapsed_count(reading, now_s)
        abandoned = len(lapsed_sets(stores, reading)[0])
        epoch = reading.status().stamp.epoch
    is_due = orphans
    if is_due is None:
        listing = stores.listing_time
        is_due = abandoned > 0 or listing.is_due(now_s, epoch)
    aborted = find_orphans(stores, tally, dry_run=True, progress=progress) if is_due else 0
    return BlobSweepReport(
        is_dry_run=True,
        lapsed_references=lapsed,
        abandoned_sets=abandoned,
        swept=tally.swept,
        final_jobs=len(ended),
        aborted_uploads=aborted,
        sought_orphans=is_due,
        blobs=tuple(tally.blobs),
    )


def _count(tally: Tally, why: Why, blobs: Iterator[Blob], *, excluded: frozenset[str] = frozenset()) -> None:
    for blob in blobs:
        if blob.job_id not in excluded:
            tally.take(why, blob.job_id, blob.blob_key, blob.size_bytes)


def _blobs_of(reading: Reading, job_id: str) -> Iterator[Blob]:
    after = ("", "")
    while page := blobs_of(reading, job_id, after=after):
        yield from page
        after = (page[-1].job_id, page[-1].blob_key)


def _marked(reading: Reading) -> Iterator[Blob]:
    last: Blob | None = None
    while page := deleting(reading, after=last):
        yield from page
        last = page[-1]
