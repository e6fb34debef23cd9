"""`/api/v1/uploads`: the open uploads of a destination."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.facts.uploads import open_uploads, upload_owners, upload_totals
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.models.storage import UploadOwners, UploadRow, UploadTotals
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest

Destination = Annotated[str, Query(description="URL of a destination in the journal.")]
Owner = Annotated[
    str | None,
    Query(max_length=200, description="Only uploads of this job; `none`: only those without an owner."),
]

router = APIRouter(prefix="/uploads", tags=["uploads"])


@router.get("")
def list_uploads(
    reads: ReadsOfRequest,
    destination: Destination,
    owner: Owner = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[UploadRow]:
    """List the first 1,000 open uploads of a destination, by key; of an owner, those in the first 100,000."""
    return open_uploads(reads, destination, after, limit, owner)


@router.get("/owners")
def owners_of_uploads(
    reads: ReadsOfRequest, destination: Destination, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> UploadOwners:
    """Return the owners of the first 100,000 open uploads of a destination, that of the oldest one first."""
    return upload_owners(reads, destination, after, limit)


@router.get("/totals")
def total_uploads(reads: ReadsOfRequest, destination: Destination) -> Page[UploadTotals]:
    """Return the totals of the first 100,000 open uploads of a destination, by what a sweep would do."""
    return upload_totals(reads, destination)
