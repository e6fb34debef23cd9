"""Routes of one job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.facts.job_detail import job_audit, job_detail, job_report
from lockgate.plugins.web.models.jobs import AuditResult, JobDetail, JobReport
from lockgate.plugins.web.reads import ReadsOfRequest

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["job"])

Destination = Annotated[
    str | None,
    Query(max_length=2_048, description="Destination of the job; may be left out if the id is unique."),
]


@router.get("")
def job(reads: ReadsOfRequest, job_id: str, destination: Destination = None) -> JobDetail:
    """Return all that is known about a job. What cannot be read is named in `unknown`."""
    return job_detail(reads, job_id, destination)


@router.get("/audit")
def audit(reads: ReadsOfRequest, job_id: str, destination: Destination = None) -> AuditResult:
    """Return the audit's verdict on a job, with the failing expectations."""
    return job_audit(reads, job_id, destination)


@router.get("/report")
def report(reads: ReadsOfRequest, job_id: str, destination: Destination = None) -> JobReport:
    """Return the report of an ended job. The fate of each file is in `/files`."""
    return job_report(reads, job_id, destination)
