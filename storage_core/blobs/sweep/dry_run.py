"""Report what a sweep would do now, without changing anything."""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.blobs.registry.queries import (
    blobs_of,
    deleting,
    every_staged,
    final_jobs,
    lapsed_count,
)
from lockgate.storage_core.blobs.registry.rows import Blob
from lockgate.storage_core.blobs.reports import BlobSweepReport, Tally, Why
from lockgate.storage_core.blobs.storage.holdings import Holdings
from lockgate.storage_core.blobs.sweep.lapsed_sets import lapsed_sets
from lockgate.storage_core.blobs.sweep.orphans import find_orphans
from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.journal.read.snapshot_read import Reading


def dry_run_sweep(holdings: Holdings, *, orphans: bool | None, progress: Progress) -> BlobSweepReport:
    """Report what a sweep would do now; see `Blobs.sweep`. A later sweep would delete what it would stage."""
    tally = Tally()
    with holdings.journal.reading() as reading:
        reading.stay_open()
        now_s = reading.now_s()
        ended = [job.job_id for job in final_jobs(reading)]
        for job_id in ended:
            _count(tally, Why.FINAL, _blobs_of(reading, job_id))
        ended_jobs = frozenset(ended)
        _count(tally, Why.STAGED, every_staged(reading, now_s - holdings.retention_s), excluded=ended_jobs)
        _count(tally, Why.MARKED, _marked(reading), excluded=ended_jobs)
        lapsed = lapsed_count(reading, now_s)
        abandoned = len(lapsed_sets(holdings, reading)[0])
        epoch = reading.status().stamp.epoch
    is_due = orphans
    if is_due is None:
        listing = holdings.listing_time
        is_due = abandoned > 0 or holdings.liveness.has_dead() or listing.is_due(now_s, epoch)
    aborted = find_orphans(holdings, tally, dry_run=True, progress=progress) if is_due else 0
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
