"""Recover the stores of a blob server as it starts: stage bytes without a row.

A server that lost its disk refills each blob from the HA store at its first use; it then also finds
damaged files. `LocalBlobs` deletes interrupted writes as it opens the store; the next sweep completes
deletions.

Source: Flink BLOB storage, "BlobServer Recovery (HA)".
"""

from __future__ import annotations

import logging

from lockgate.storage_core.blobs.reports import Amount, Tally, Why
from lockgate.storage_core.blobs.storage.holdings import Holdings
from lockgate.storage_core.blobs.sweep.orphans import find_orphans
from lockgate.storage_core.concurrency import no_progress

logger = logging.getLogger(__name__)


def recover(holdings: Holdings) -> Amount:
    """Stage bytes in the stores that have no row; return how much that was.

    Nothing is staged in safe mode: a restored journal may lack the rows of blobs that are in use.

    Raises:
        LockgateError: A store or the journal could not be reached. The server may start: the next sweep lists
            the stores.
    """
    holdings.listing_time.forget()  # if this fails, the next sweep lists the stores
    if holdings.journal.status().safe_since_s is not None:
        logger.warning("blobs: the journal is in safe mode; bytes without a row are left until it ends")
        return Amount()
    tally = Tally()
    aborted = find_orphans(holdings, tally, dry_run=False, progress=no_progress)
    staged = tally.swept.get(Why.ORPHAN, Amount())
    logger.info(
        "blobs: staged %d blobs without a row, %d bytes; aborted %d uploads",
        staged.blobs,
        staged.size_bytes,
        aborted,
    )
    return staged
