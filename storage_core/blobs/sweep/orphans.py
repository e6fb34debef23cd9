"""Bytes that no row knows: found by listing the stores, staged as whatever nothing refers to.

A put that died, or whose journal gave no answer, leaves bytes without a row. Their key names the upload set
that they were put under: while that is open somebody may still record them, afterwards nobody can.

Listing costs a request a thousand blobs where nothing else of a sweep does, so it has a rhythm of its own. It
is due a day after the last one, and at once where a sweep gives up an upload set: whoever held it is gone and
may have left something. The local store keeps when it was last listed, so that a server without one, new or
with a new disk, lists first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, upload_set_of
from lockgate.storage_core.blobs.registry.queries import PAGE, known_blobs, upload_sets
from lockgate.storage_core.blobs.registry.removals import AdoptBlob
from lockgate.storage_core.blobs.reports import Tally, Why
from lockgate.storage_core.blobs.storage.holdings import Holdings
from lockgate.storage_core.blobs.storage.local import Found
from lockgate.storage_core.blobs.sweep.store_owner import claim_stores
from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal import Mutation, Written
from lockgate.storage_core.stores.pagination import in_pages


class OrphanScan(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing of the stores brought to light.

    Attributes:
        aborted_uploads: Multipart uploads in the HA store that no open set explained.
        is_settled: Nothing is left that a later listing could judge otherwise.
    """

    aborted_uploads: int
    is_settled: bool


class _Listed(NamedTuple):
    """A blob, and in which store it was met."""

    found: Found
    in_ha: bool

    @property
    def key(self) -> tuple[str, BlobKey]:
        """Its job and its key."""
        return self.found.job_id, self.found.blob_key


def find_orphans(holdings: Holdings, tally: Tally, *, dry_run: bool, progress: Progress) -> OrphanScan:
    """List the stores and stage what no row knows; abort uploads that nobody can complete.

    Args:
        holdings: Stores and journal.
        tally: Hears what was found.
        dry_run: Only find it.
        progress: Hears how many blobs were listed; how many there are nobody knows.

    Raises:
        ConflictError: A store is another journal's.
        LockgateError: A store could not be listed; what was staged stays so.
    """
    with step("blob-orphans"):
        claim_stores(holdings, dry_run=dry_run)
        with holdings.journal.reading() as reading:
            began_s, epoch = reading.now_s(), reading.status().stamp.epoch
        listed, undecided = 0, list[_Listed]()
        with nullcontext() if dry_run else holdings.last_listing.begun() as listing:
            for page in in_pages(_everything(holdings), PAGE):
                orphans, in_open_sets = _judge(holdings, page)
                undecided += in_open_sets[: PAGE - len(undecided) + 1]  # more than a page are not asked about
                taken = _met_first(holdings, orphans) if dry_run else _adopted(holdings, orphans)
                for at in taken:
                    tally.take(Why.ORPHAN, at.found.job_id, at.found.blob_key, at.found.size_bytes)
                listed += len(page)
                progress("list", listed, 0)
            aborted, were_all = _abort_uploads(holdings, dry_run=dry_run)
            is_settled = were_all and len(undecided) <= PAGE and not _without_rows(holdings, undecided)
            if is_settled and listing is not None:
                listing.note(began_s, epoch)
    return OrphanScan(aborted_uploads=aborted, is_settled=is_settled)


def _everything(holdings: Holdings) -> Iterator[_Listed]:
    """Yield what lies in both stores; what both have comes twice."""
    for job_id in holdings.local.jobs():
        yield from (_Listed(found, in_ha=False) for found in holdings.local.blobs(job_id))
    if holdings.ha is not None:
        yield from (_Listed(found, in_ha=True) for found in holdings.ha.blobs())


def _judge(holdings: Holdings, page: Sequence[_Listed]) -> tuple[list[_Listed], list[_Listed]]:
    """Return the orphans among listed blobs, and those that somebody may still record.

    The rows are read after the listing: a blob that was recorded meanwhile has its row by then. One that was
    deleted meanwhile has none any more; of the HA store nobody asks that, and staging nothing does no harm.
    """
    with holdings.journal.reading() as reading:
        open_sets = {one.upload_set for one in upload_sets(reading)}
    unknown = _without_rows(holdings, page)
    orphans = [at for at in unknown if upload_set_of(at.found.blob_key) not in open_sets]
    in_open_sets = [at for at in unknown if upload_set_of(at.found.blob_key) in open_sets]
    return orphans, in_open_sets


def _without_rows(holdings: Holdings, listed: Sequence[_Listed]) -> list[_Listed]:
    """Return blobs that still have no row; those of puts that were under way have theirs a moment later."""
    with holdings.journal.reading() as reading:
        known = known_blobs(reading, [at.key for at in listed]) if listed else set()
    unknown = [at for at in listed if at.key not in known]
    return [at for at in unknown if at.in_ha or holdings.local.size_of(*at.key) is not None]


def _adopted(holdings: Holdings, orphans: Sequence[_Listed]) -> list[_Listed]:
    """Stage orphans; returns those that nobody has staged or recorded meanwhile."""
    if not orphans:
        return []
    outcomes = holdings.journal.write([Mutation(op=_adoption(at.found)) for at in orphans])
    return [
        at
        for at, outcome in zip(orphans, outcomes, strict=True)
        if isinstance(outcome, Written) and outcome.result
    ]


def _met_first(holdings: Holdings, orphans: Sequence[_Listed]) -> list[_Listed]:
    """Return orphans without those of the HA store that the local one has, too, and has told of."""
    return [at for at in orphans if not at.in_ha or holdings.local.size_of(*at.key) is None]


def _adoption(found: Found) -> AdoptBlob:
    return AdoptBlob(
        job_id=found.job_id,
        blob_key=found.blob_key,
        upload_set=upload_set_of(found.blob_key),
        guarantee="ha",  # so that it goes from both stores, wherever it was found
        size_bytes=found.size_bytes,
    )


def _abort_uploads(holdings: Holdings, *, dry_run: bool) -> tuple[int, bool]:
    """Abort multipart uploads whose set is not open: what they would become could not be recorded.

    Returns:
        How many, and whether these were all.
    """
    if holdings.ha is None:
        return 0, True
    listed = aborted = 0
    for uploads in holdings.ha.open_uploads():
        with holdings.journal.reading() as reading:  # after the listing: a set is opened before its uploads
            open_sets = {one.upload_set for one in upload_sets(reading)}
        listed += len(uploads)
        for upload in uploads:
            if upload_set_of(upload.blob_key) not in open_sets:
                aborted += 1
                if not dry_run:
                    holdings.ha.abort(upload)
    return aborted, aborted == listed
