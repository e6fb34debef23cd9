"""Routes of destinations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.api.run_users import HostOfRequest, with_users
from lockgate.plugins.web.facts.destinations import destination_detail, destination_rows
from lockgate.plugins.web.facts.turns import destination_log
from lockgate.plugins.web.models.destinations import DestinationDetail, DestinationRow, Turn
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest

router = APIRouter(prefix="/api/v1/destinations", tags=["destinations"])

Destination = Annotated[str, Query(max_length=2_048, description="A known destination.")]


@router.get("")
def destinations(
    reads: ReadsOfRequest, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[DestinationRow]:
    """Return the known destinations."""
    return destination_rows(reads, after, limit)


@router.get("/detail")
def detail(reads: ReadsOfRequest, destination: Destination) -> DestinationDetail:
    """Return a destination's live data, and what blocks it. What cannot be read is named in `unknown`."""
    return destination_detail(reads, destination)


@router.get("/log")
def log(
    reads: ReadsOfRequest,
    host: HostOfRequest,
    destination: Destination,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[Turn]:
    """Return a destination's log, the newest turn first, each with who set its job up."""
    page = destination_log(reads, destination, after, limit)
    origins = with_users(host, [turn.origin for turn in page.items])
    turns = (turn.model_copy(update={"origin": one}) for turn, one in zip(page.items, origins, strict=True))
    return page.model_copy(update={"items": tuple(turns)})
