"""Open uploads of a destination: owner, size, cost, and what a sweep would do.

S3 bills open uploads, and no listing shows them.
"""

from __future__ import annotations

from typing import Final

from lockgate.plugins.web.models.base import Page
from lockgate.plugins.web.models.storage import UploadRow, UploadTotals
from lockgate.plugins.web.paging import cursor, key_after
from lockgate.plugins.web.reads import Reads
from lockgate.storage_core.commit.recovery.upload_sweep import find_uploads
from lockgate.storage_core.commit.uploads.upload_cost import measure_uploads, totals_by_action
from lockgate.storage_core.commit.uploads.upload_owner import SweepAction, UploadFate
from lockgate.storage_core.concurrency import no_progress
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores import open_store

MAX_UPLOADS: Final = 1_000
"""Uploads that are read: the store lists them in pages of this size, from the beginning only."""


TOTALS_LIMIT_S: Final = 20.0
"""Sizes are one request for each upload."""


def open_uploads(reads: Reads, destination: str, after: str | None, limit: int) -> Page[UploadRow]:
    """Return a page of the open uploads of a destination, by key.

    Raises:
        ObjectNotFoundError: The destination is not known.
    """
    key = key_after("uploads", after, str, str)
    url = reads.known(destination)
    try:
        found, unknown = reads.store(url, lambda: _uploads(reads, url))
        left = [fate for fate in found if key is None or (fate.key, fate.upload_id) > key]
        shown = reads.store(url, lambda: _measured(reads, url, left[:limit]))
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    return Page(
        items=tuple(_row(fate) for fate in shown),
        next_after=cursor("uploads", (shown[-1].key, shown[-1].upload_id)) if len(left) > limit else None,
        unknown=unknown,
    )


def upload_totals(reads: Reads, destination: str) -> Page[UploadTotals]:
    """Return the totals of the open uploads of a destination, by what a sweep would do.

    Raises:
        ObjectNotFoundError: The destination is not known.
    """
    url = reads.known(destination)

    def measured() -> tuple[list[UploadFate], tuple[str, ...]]:
        found, unknown = _uploads(reads, url)
        return _measured(reads, url, found), unknown

    try:
        found, unknown = reads.store(url, measured, limit_s=TOTALS_LIMIT_S)
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    has_price = url.startswith("s3://")
    return Page(
        items=tuple(
            UploadTotals(
                action=action,
                uploads=sums.uploads,
                unmeasured=sums.unmeasured,
                size_bytes=sums.size,
                monthly_usd=sums.monthly_cost_usd if has_price else None,
            )
            for action, sums in totals_by_action(found, reads.settings).items()
        ),
        unknown=unknown,
    )


def _uploads(reads: Reads, url: str) -> tuple[list[UploadFate], tuple[str, ...]]:
    """Return the first uploads, in order, and a sentence if there are more."""
    fates = find_uploads(url, MAX_UPLOADS + 1, settings=reads.settings, clock=reads.clock)
    found = sorted(fates, key=lambda fate: (fate.key, fate.upload_id))
    if len(found) <= MAX_UPLOADS:
        return found, ()
    more = (
        f"More than {MAX_UPLOADS} uploads are open; only the first ones are here; `lockgate "
        f"uploads list {url}` lists all."
    )
    return found[:MAX_UPLOADS], (more,)


def _measured(reads: Reads, url: str, fates: list[UploadFate]) -> list[UploadFate]:
    """Return the uploads with their sizes: one request for each, if the listing has none."""
    store = open_store(url, reads.settings)
    every = frozenset(SweepAction)
    found = measure_uploads(store, fates, every, settings=reads.settings, progress=no_progress)
    return list(found)


def _row(fate: UploadFate) -> UploadRow:
    return UploadRow(
        key=fate.key,
        upload_id=fate.upload_id,
        owner=fate.owner,
        begun_s=fate.begun_s,
        size_bytes=fate.size,
        action=fate.action,
        why=fate.reason,
        remedy=fate.remedy,
    )
