"""`/api/v1/uploads`: the open uploads of a destination."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.facts.uploads import open_uploads, upload_totals
from lockgate.plugins.web.models.base import Page
from lockgate.plugins.web.models.storage import UploadRow, UploadTotals
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.reads import ReadsOfRequest

Destination = Annotated[str, Query(description="URL of a destination in the journal.")]


router = APIRouter(prefix="/uploads", tags=["uploads"])


@router.get("")
def list_uploads(
    reads: ReadsOfRequest, destination: Destination, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[UploadRow]:
    """List the open uploads of a destination, by key."""
    return open_uploads(reads, destination, after, limit)


@router.get("/totals")
def total_uploads(reads: ReadsOfRequest, destination: Destination) -> Page[UploadTotals]:
    """Return the totals of the open uploads of a destination, by what a sweep would do."""
    return upload_totals(reads, destination)
