"""Open uploads of a destination: owner, size, cost, and what a sweep would do.

S3 bills open uploads, and no listing shows them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from typing import Final

from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.models.storage import UploadOwner, UploadOwners, UploadRow, UploadTotals
from lockgate.plugins.web.paging import cursor, key_after
from lockgate.plugins.web.request_reads import STORE_LIMIT_S, Reads
from lockgate.storage_core.commit.recovery.upload_sweep import find_uploads
from lockgate.storage_core.commit.uploads.upload_cost import measure_uploads, totals_by_action
from lockgate.storage_core.commit.uploads.upload_cost import upload_totals as sums_of
from lockgate.storage_core.commit.uploads.upload_owner import NO_OWNER, OpenUpload, SweepAction
from lockgate.storage_core.concurrency import no_progress
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores import open_store

MAX_LISTED: Final = 1_000
"""Uploads that a list of all owners reads: the store lists them from the beginning only."""

MAX_UPLOADS: Final = 100_000
"""Uploads that totals, and the list of one owner, read."""

MAX_MEASURED: Final = 1_000
"""Uploads whose sizes totals request, the oldest first: a size is one request, if the listing has none."""

LISTING_LIMIT_S: Final = 12.0
TOTALS_LIMIT_S: Final = 20.0


def open_uploads(
    reads: Reads, destination: str, after: str | None, limit: int, owner: str | None = None
) -> Page[UploadRow]:
    """Return a page of the open uploads of a destination, by key.

    Args:
        reads: Reads of the application.
        destination: The destination.
        after: `next_after` of the previous page.
        limit: Maximum number of uploads.
        owner: Only uploads of this job; `none`: only those without an owner.

    Raises:
        ObjectNotFoundError: The destination is not known.
    """
    key = key_after("uploads", after, str, str)
    url = reads.known(destination)
    most, limit_s = (MAX_UPLOADS, TOTALS_LIMIT_S) if owner else (MAX_LISTED, STORE_LIMIT_S)
    try:
        found, unknown = reads.store(url, lambda: _uploads(reads, url, most), limit_s=limit_s)
        found = [upload for upload in found if not owner or (upload.owner or NO_OWNER) == owner]
        left = [upload for upload in found if key is None or (upload.key, upload.upload_id) > key]
        shown = reads.store(url, lambda: _measured(reads, url, left[:limit]))
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    return Page(
        items=tuple(_row(upload) for upload in shown),
        next_after=cursor("uploads", (shown[-1].key, shown[-1].upload_id)) if len(left) > limit else None,
        unknown=unknown,
    )


def upload_owners(reads: Reads, destination: str, after: str | None, limit: int) -> UploadOwners:
    """Return a page of the owners of the open uploads of a destination, that of the oldest upload first.

    Raises:
        ObjectNotFoundError: The destination is not known.
    """
    key = key_after("upload-owners", after, (float, int), str)
    url = reads.known(destination)
    try:
        found, unknown = reads.store(url, lambda: _all_measured(reads, url), limit_s=TOTALS_LIMIT_S)
    except LockgateError as error:
        return UploadOwners(items=(), unknown=(str(error),))
    by_owner: dict[str | None, list[OpenUpload]] = defaultdict(list)
    for upload in found:
        by_owner[upload.owner].append(upload)
    owners = sorted((_owner(reads, url, owner, uploads) for owner, uploads in by_owner.items()), key=_place)
    left = [owner for owner in owners if key is None or _place(owner) > key]
    return UploadOwners(
        items=tuple(left[:limit]),
        next_after=cursor("upload-owners", _place(left[limit - 1])) if len(left) > limit else None,
        unknown=unknown,
        totals=_totals(reads, url, found),
    )


def upload_totals(reads: Reads, destination: str) -> Page[UploadTotals]:
    """Return the totals of the open uploads of a destination, by what a sweep would do.

    Raises:
        ObjectNotFoundError: The destination is not known.
    """
    url = reads.known(destination)
    try:
        found, unknown = reads.store(url, lambda: _all_measured(reads, url), limit_s=TOTALS_LIMIT_S)
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    return Page(items=_totals(reads, url, found), unknown=unknown)


def _totals(reads: Reads, url: str, found: list[OpenUpload]) -> tuple[UploadTotals, ...]:
    return tuple(
        UploadTotals(
            action=action,
            uploads=sums.uploads,
            unmeasured=sums.unmeasured,
            size_bytes=sums.size,
            monthly_usd=_price(url, sums.monthly_cost_usd),
        )
        for action, sums in totals_by_action(found, reads.settings).items()
    )


def _owner(reads: Reads, url: str, owner: str | None, uploads: list[OpenUpload]) -> UploadOwner:
    sums = sums_of(uploads, reads.settings)
    return UploadOwner(
        owner=owner,
        uploads=sums.uploads,
        unmeasured=sums.unmeasured,
        size_bytes=sums.size,
        monthly_usd=_price(url, sums.monthly_cost_usd),
        oldest_s=min(upload.begun_s for upload in uploads),
        newest_s=max(upload.begun_s for upload in uploads),
        actions=dict(sorted(Counter(str(upload.action) for upload in uploads).items())),
    )


def _place(owner: UploadOwner) -> tuple[float, str]:
    return owner.oldest_s, owner.owner or ""


def _price(url: str, monthly_usd: float) -> float | None:
    return monthly_usd if url.startswith("s3://") else None


def _all_measured(reads: Reads, url: str) -> tuple[list[OpenUpload], tuple[str, ...]]:
    """Return the uploads with the sizes of the oldest ones, and a sentence if there are more."""
    found, unknown = _uploads(reads, url, MAX_UPLOADS)
    found.sort(key=lambda upload: upload.begun_s)
    return _measured(reads, url, found[:MAX_MEASURED]) + found[MAX_MEASURED:], unknown


def _uploads(reads: Reads, url: str, most: int) -> tuple[list[OpenUpload], tuple[str, ...]]:
    """Return the first uploads, in order, and a sentence if there are more."""
    limit_s = LISTING_LIMIT_S if most > MAX_LISTED else inf
    listed = find_uploads(url, most, limit_s=limit_s, settings=reads.settings, clock=reads.clock)
    found = sorted(listed.uploads, key=lambda upload: (upload.key, upload.upload_id))
    if listed.is_all:
        return found, ()
    more = (
        f"More than {len(found):,} uploads are open; only the first ones are here; `lockgate uploads list "
        f"{url}` lists all."
    )
    return found, (more,)


def _measured(reads: Reads, url: str, uploads: list[OpenUpload]) -> list[OpenUpload]:
    """Return the uploads with their sizes: one request for each, if the listing has none."""
    store = open_store(url, reads.settings)
    every = frozenset(SweepAction)
    found = measure_uploads(store, uploads, every, settings=reads.settings, progress=no_progress)
    return list(found)


def _row(upload: OpenUpload) -> UploadRow:
    return UploadRow(
        key=upload.key,
        upload_id=upload.upload_id,
        owner=upload.owner,
        begun_s=upload.begun_s,
        size_bytes=upload.size,
        action=upload.action,
        why=upload.reason,
        remedy=upload.remedy,
    )
