"""What a blob server does as it starts: it takes responsibility for everything below its path.

Blobs of recovered jobs are fetched lazily: a server that lost its disk refills from the HA store at each
blob's first use, which is also when damaged files are found. What an earlier server left under way is dropped
as the local store is opened; deletions that it began are finished by the next sweep.

Source: Flink BLOB storage, "BlobServer Recovery (HA)".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lockgate.storage_core.blobs.reports import Amount, Why
from lockgate.storage_core.blobs.storage.listing_marker import LastListing
from lockgate.storage_core.blobs.sweep.orphans import seek_orphans
from lockgate.storage_core.blobs.tally import Tally
from lockgate.storage_core.concurrency import Progress, no_progress

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.server.server import BlobServer

logger = logging.getLogger(__name__)


def recover(server: BlobServer, *, progress: Progress = no_progress) -> Amount:
    """Stage what lies in the stores and no row knows; returns how much that was.

    Nothing is staged in safe mode: a restored journal may have lost the rows of blobs that are in use.

    Args:
        server: Just opened.
        progress: Hears how many blobs were listed.

    Raises:
        LockgateError: A store or the journal could not be reached. Nothing is lost by starting without it:
            the next sweep lists the stores.
    """
    LastListing(server.local.path).forget()  # so that a sweep lists, should this come to nothing
    if server.journal.status().safe_since_s is not None:
        logger.warning("blobs: the journal is in safe mode: what no row knows is let be until that is left")
        return Amount()
    tally = Tally()
    sought = seek_orphans(server, tally, dry_run=False, progress=progress)
    staged = tally.swept.get(Why.ORPHAN, Amount())
    logger.info(
        "blobs: staged %d that no row knew, %d bytes; aborted %d uploads",
        staged.blobs,
        staged.size_bytes,
        sought.aborted_uploads,
    )
    return staged
