"""Routes of lists of jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.facts.job_index import JobFilter, Sort, job_counts, job_page
from lockgate.plugins.web.models.jobs import JobCounts, JobRow, Needs
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest
from lockgate.storage_core.commit.registry.rows import Phase

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])


@router.get("")
def jobs(  # noqa: PLR0917 - each is a query parameter
    reads: ReadsOfRequest,
    needs: Annotated[Needs | None, Query(description="What the jobs need.")] = None,
    phase: Annotated[Phase | None, Query(description="Phase in the registry.")] = None,
    destination: Annotated[str | None, Query(max_length=2_048, description="URL of a destination.")] = None,
    search: Annotated[
        str, Query(max_length=200, description="Beginning of the jobs' names; orders the list by name.")
    ] = "",
    sort: Annotated[Sort, Query(description="Order: by time of the set-up, or by name.")] = "newest",
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobRow]:
    """List jobs of all destinations. A page with a rare filter may have few items although others follow."""
    filters = JobFilter(needs=needs, phase=phase, destination=destination, search=search, sort=sort)
    return job_page(reads, filters, after, limit)


@router.get("/counts")
def counts(reads: ReadsOfRequest) -> JobCounts:
    """Return how many jobs need a person, and how many have not ended, each up to a limit."""
    return job_counts(reads)
