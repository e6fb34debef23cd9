"""`/api/v1/blobs`: jobs with blobs, and the blobs of one."""

from __future__ import annotations

from fastapi import APIRouter

from lockgate.plugins.web.facts.blobs import blob_jobs, blobs_of_job
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.models.storage import BlobJobRow, BlobRow
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest

router = APIRouter(prefix="/blobs/jobs", tags=["blobs"])


@router.get("")
def list_blob_jobs(
    reads: ReadsOfRequest, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[BlobJobRow]:
    """List the jobs that have blobs, by name."""
    return blob_jobs(reads, after, limit)


@router.get("/{blob_job}")
def list_blobs(
    reads: ReadsOfRequest, blob_job: str, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[BlobRow]:
    """List the blobs of a job, by key."""
    return blobs_of_job(reads, blob_job, after, limit)
