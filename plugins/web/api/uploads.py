"""Open uploads of a destination: owner, size, cost, and what a sweep would do.

S3 bills open uploads, and no listing shows them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Annotated, Final

from fastapi import APIRouter, Query

from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Model, Page, key_after, page_of
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.commit.recovery.upload_sweep import find_uploads
from lockgate.storage_core.commit.uploads.upload_cost import measure_uploads, totals_by_action, upload_totals
from lockgate.storage_core.commit.uploads.upload_owner import NO_OWNER, OpenUpload, SweepAction
from lockgate.storage_core.concurrency import no_progress
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores import open_store

router = APIRouter(prefix="/uploads", tags=["uploads"])

MAX_UPLOADS: Final = 100_000
"""Uploads that one answer reads: the store lists them from the beginning only."""

MAX_MEASURED: Final = 1_000
"""Uploads whose sizes totals request, the oldest first: a size is one request, if the listing has none."""

LISTING_LIMIT_S: Final = 12.0
ANSWER_LIMIT_S: Final = 20.0


Destination = Annotated[str, Query(description="URL of a destination in the journal.")]
Owner = Annotated[
    str | None,
    Query(max_length=200, description="Only uploads of this job; `none`: only those without an owner."),
]


class UploadRow(Model):
    """An open upload.

    Attributes:
        owner: Id of its job; None without a known owner.
        begun_s: By the store's clock.
        action: What a sweep would do: `abort`, `keep`, or `stage` (a later sweep aborts it).
        why: Reason for the action.
        remedy: What a person can do about an upload that is kept; empty if nothing.
    """

    key: str
    upload_id: str
    owner: str | None
    begun_s: float
    size_bytes: int | None
    action: str
    why: str
    remedy: str


class UploadTotals(Model):
    """All open uploads of a destination for which a sweep would do the same.

    Attributes:
        unmeasured: Uploads of unknown size, which the other figures do not include.
        monthly_usd: Approximate cost of a month; None for a store without a price.
    """

    action: str
    uploads: int
    unmeasured: int
    size_bytes: int
    monthly_usd: float | None


class UploadOwner(Model):
    """The open uploads of one job, or those without an owner.

    Attributes:
        owner: Id of the job; None: uploads without a known owner.
        unmeasured: Uploads of unknown size, which `size_bytes` and `monthly_usd` do not include.
        monthly_usd: Approximate cost of a month; None for a store without a price.
        oldest_s: When the first of them was begun, by the store's clock.
        newest_s: When the last of them was begun.
        actions: Number of uploads by what a sweep would do: `abort`, `keep` or `stage`.
    """

    owner: str | None
    uploads: int
    unmeasured: int
    size_bytes: int
    monthly_usd: float | None
    oldest_s: float
    newest_s: float
    actions: dict[str, int]


class UploadOwners(Page[UploadOwner]):
    """A page of the owners of open uploads, and the totals of all uploads by what a sweep would do."""

    totals: tuple[UploadTotals, ...] = ()


@router.get("")
def open_uploads(
    reads: ReadsOfRequest,
    destination: Destination,
    owner: Owner = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[UploadRow]:
    """List the open uploads of a destination, or those of an owner, by key: those in the first 100,000.

    Raises:
        DestinationNotFoundError: The destination is not known.
    """
    key = key_after("uploads", after, str, str)
    url = reads.known(destination)
    try:
        found, unknown = reads.store(url, lambda: _uploads(reads, url), limit_s=ANSWER_LIMIT_S)
        found = [upload for upload in found if not owner or (upload.owner or NO_OWNER) == owner]
        left = [upload for upload in found if key is None or (upload.key, upload.upload_id) > key]
        shown = reads.store(url, lambda: _measured(reads, url, left[:limit]))
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    # Only the uploads of this page are measured.
    listed = [*shown, *left[limit:]]
    return page_of("uploads", listed, limit, lambda each: (each.key, each.upload_id), _row, unknown=unknown)


@router.get("/owners")
def upload_owners(
    reads: ReadsOfRequest, destination: Destination, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> UploadOwners:
    """Return the owners of the first 100,000 open uploads of a destination, that of the oldest one first.

    Raises:
        DestinationNotFoundError: The destination is not known.
    """
    key = key_after("upload-owners", after, (float, int), str)
    url = reads.known(destination)
    try:
        found, unknown = reads.store(url, lambda: _all_measured(reads, url), limit_s=ANSWER_LIMIT_S)
    except LockgateError as error:
        return UploadOwners(items=(), unknown=(str(error),))
    by_owner: dict[str | None, list[OpenUpload]] = defaultdict(list)
    for upload in found:
        by_owner[upload.owner].append(upload)
    owners = sorted((_owner(reads, url, owner, uploads) for owner, uploads in by_owner.items()), key=_place)
    left = [owner for owner in owners if key is None or _place(owner) > key]
    page = page_of("upload-owners", left, limit, _place, lambda owner: owner, unknown=unknown)
    return UploadOwners(**dict(page), totals=_totals(reads, url, found))


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
    sums = upload_totals(uploads, reads.settings)
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
    found, unknown = _uploads(reads, url)
    found.sort(key=lambda upload: upload.begun_s)
    return _measured(reads, url, found[:MAX_MEASURED]) + found[MAX_MEASURED:], unknown


def _uploads(reads: Reads, url: str) -> tuple[list[OpenUpload], tuple[str, ...]]:
    """Return the first uploads, in order, and a sentence if there are more."""
    listed = find_uploads(
        url, MAX_UPLOADS, limit_s=LISTING_LIMIT_S, settings=reads.settings, clock=reads.clock
    )
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
