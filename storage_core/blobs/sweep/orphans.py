"""Orphans: find bytes without a row by listing the stores, and stage them like unreferenced blobs.

A put that died, or whose journal gave no answer, leaves bytes without a row. Their key names the upload set
of the put: while the set is open the put may still be recorded, afterwards it cannot.

A listing costs a request for each thousand blobs, more than the rest of a sweep. It is due a day after the
last one, and at once after a sweep abandons an upload set, because its uploader may have left bytes. The
local store keeps the time of the last listing, so a server with a new disk lists the stores first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from lockgate.storage_core.blobs.keys import BlobKey, upload_set_of
from lockgate.storage_core.blobs.registry.queries import PAGE, known_blobs, upload_sets
from lockgate.storage_core.blobs.registry.removals import AdoptBlob
from lockgate.storage_core.blobs.reports import Amount, Tally, Why
from lockgate.storage_core.blobs.storage.blob_stores import BlobStores
from lockgate.storage_core.blobs.storage.local import ListedBlob
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal import Mutation, Written
from lockgate.storage_core.stores.protocol import in_pages

logger = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """A listed copy of a blob, and whether it lies in the HA store."""

    blob: ListedBlob
    in_ha: bool

    @property
    def key(self) -> tuple[str, BlobKey]:
        return self.blob.job_id, self.blob.blob_key


def find_orphans(stores: BlobStores, tally: Tally, *, dry_run: bool, progress: Progress) -> int:
    """List the stores, stage bytes without a row, and abort uploads that cannot be recorded.

    Returns:
        Number of multipart uploads in the HA store that were aborted.

    Raises:
        ConflictError: A store belongs to another journal.
        LockgateError: A store could not be listed; blobs staged before stay staged.
    """
    with step("blob-orphans"):
        stores.owner.check()
        if not dry_run:
            stores.owner.claim_local()
            stores.owner.claim_ha()
        with stores.journal.reading() as reading:
            began_s, epoch = reading.now_s(), reading.status().stamp.epoch
        listed, undecided = 0, list[_Copy]()
        with nullcontext() if dry_run else stores.listing_time.begin() as listing:
            for page in in_pages(_list_stores(stores), PAGE):
                orphans, in_open_sets = _judge(stores, page)
                undecided += in_open_sets[: PAGE - len(undecided) + 1]  # more than a page is not rechecked
                staged = _without_duplicates(stores, orphans) if dry_run else _adopt(stores, orphans)
                for copy in staged:
                    tally.take(Why.ORPHAN, copy.blob.job_id, copy.blob.blob_key, copy.blob.size_bytes)
                listed += len(page)
                progress("list", listed, 0)
            aborted, were_all = _abort_uploads(stores, dry_run=dry_run)
            is_settled = were_all and len(undecided) <= PAGE and not _without_rows(stores, undecided)
            if is_settled and listing is not None:
                listing.record(began_s, epoch)
    return aborted


def _list_stores(stores: BlobStores) -> Iterator[_Copy]:
    """Yield the copies in both stores."""
    for job_id in stores.local.jobs():
        yield from (_Copy(blob, in_ha=False) for blob in stores.local.blobs(job_id))
    if stores.ha is not None:
        yield from (_Copy(blob, in_ha=True) for blob in stores.ha.blobs())


def _judge(stores: BlobStores, page: Sequence[_Copy]) -> tuple[list[_Copy], list[_Copy]]:
    """Return the orphans among listed copies, and copies whose put may still be recorded.

    The rows are read after the listing, so a blob recorded meanwhile has its row. A blob deleted meanwhile
    has no row either: the local store is checked for it, and staging a deleted HA copy does no harm.
    """
    with stores.journal.reading() as reading:
        open_sets = {row.upload_set for row in upload_sets(reading)}
    unknown = _without_rows(stores, page)
    orphans = [copy for copy in unknown if upload_set_of(copy.blob.blob_key) not in open_sets]
    in_open_sets = [copy for copy in unknown if upload_set_of(copy.blob.blob_key) in open_sets]
    return orphans, in_open_sets


def _without_rows(stores: BlobStores, copies: Sequence[_Copy]) -> list[_Copy]:
    """Return the copies that have no row now and still exist; puts under way may have been recorded since."""
    with stores.journal.reading() as reading:
        known = known_blobs(reading, [copy.key for copy in copies]) if copies else set()
    unknown = [copy for copy in copies if copy.key not in known]
    return [copy for copy in unknown if copy.in_ha or stores.local.size_of(*copy.key) is not None]


def _adopt(stores: BlobStores, orphans: Sequence[_Copy]) -> list[_Copy]:
    """Stage orphans; return those that were neither staged nor recorded meanwhile."""
    if not orphans:
        return []
    outcomes = stores.journal.write([Mutation(op=_adoption(copy.blob)) for copy in orphans])
    return [
        copy
        for copy, outcome in zip(orphans, outcomes, strict=True)
        if isinstance(outcome, Written) and outcome.result
    ]


def _without_duplicates(stores: BlobStores, orphans: Sequence[_Copy]) -> list[_Copy]:
    """Return orphans without the HA copies of blobs that the local store has, too."""
    return [copy for copy in orphans if not copy.in_ha or stores.local.size_of(*copy.key) is None]


def _adoption(blob: ListedBlob) -> AdoptBlob:
    return AdoptBlob(
        job_id=blob.job_id,
        blob_key=blob.blob_key,
        upload_set=upload_set_of(blob.blob_key),
        guarantee="ha",  # so that it is deleted from both stores
        size_bytes=blob.size_bytes,
    )


def _abort_uploads(stores: BlobStores, *, dry_run: bool) -> tuple[int, bool]:
    """Abort multipart uploads whose set is not open; return their number, and whether none is left."""
    if stores.ha is None:
        return 0, True
    listed = aborted = 0
    for uploads in stores.ha.open_uploads():
        with stores.journal.reading() as reading:  # after the listing: a set is opened before its uploads
            open_sets = {row.upload_set for row in upload_sets(reading)}
        listed += len(uploads)
        for upload in uploads:
            if upload_set_of(upload.blob_key) not in open_sets:
                aborted += 1
                if not dry_run:
                    stores.ha.abort(upload)
    return aborted, aborted == listed


def recover(stores: BlobStores) -> Amount:
    """Stage bytes in the stores that have no row; return how much that was.

    Nothing is staged in safe mode: a restored journal may lack the rows of blobs that are in use.

    Raises:
        LockgateError: A store or the journal could not be reached. The server may start: the next sweep lists
            the stores.
    """
    stores.listing_time.forget()  # if this fails, the next sweep lists the stores
    if stores.journal.status().safe_since_s is not None:
        logger.warning("blobs: the journal is in safe mode; bytes without a row are left until it ends")
        return Amount()
    tally = Tally()
    aborted = find_orphans(stores, tally, dry_run=False, progress=no_progress)
    staged = tally.swept.get(Why.ORPHAN, Amount())
    logger.info(
        "blobs: staged %d blobs without a row, %d bytes; aborted %d uploads",
        staged.blobs,
        staged.size_bytes,
        aborted,
    )
    return staged
