"""Routes of one job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lockgate.plugins.web.api.run_users import HostOfRequest, with_users
from lockgate.plugins.web.facts.job_detail import job_audit, job_detail, job_report
from lockgate.plugins.web.facts.job_event_log import job_log
from lockgate.plugins.web.facts.job_files import job_attempts, job_files, job_plan
from lockgate.plugins.web.models.event_log import JobLog
from lockgate.plugins.web.models.jobs import Attempt, AuditResult, JobDetail, JobFile, JobPlan, JobReport
from lockgate.plugins.web.models.model import Page
from lockgate.plugins.web.paging import DEFAULT_LIMIT, After, Limit
from lockgate.plugins.web.request_reads import ReadsOfRequest

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["job"])

Destination = Annotated[
    str | None,
    Query(max_length=2_048, description="Destination of the job; may be left out if the id is unique."),
]


@router.get("")
def job(
    reads: ReadsOfRequest, host: HostOfRequest, job_id: str, destination: Destination = None
) -> JobDetail:
    """Return all that is known about a job. What cannot be read is named in `unknown`."""
    found = job_detail(reads, job_id, destination)
    [origin] = with_users(host, [found.row.origin])
    return found.model_copy(update={"row": found.row.model_copy(update={"origin": origin})})


@router.get("/attempts")
def attempts(
    reads: ReadsOfRequest,
    job_id: str,
    destination: Destination = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[Attempt]:
    """Return the committed task attempts of a job, by task."""
    return job_attempts(reads, job_id, destination, after, limit)


@router.get("/files")
def files(
    reads: ReadsOfRequest,
    job_id: str,
    destination: Destination = None,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobFile]:
    """Return the files of a job: pending ones, from the decision on those of the plan, then their results."""
    return job_files(reads, job_id, destination, after, limit)


@router.get("/plan")
def plan(reads: ReadsOfRequest, job_id: str, destination: Destination = None) -> JobPlan:
    """Return the plan of a decided job, without its files."""
    return job_plan(reads, job_id, destination)


@router.get("/audit")
def audit(reads: ReadsOfRequest, job_id: str, destination: Destination = None) -> AuditResult:
    """Return the audit's verdict on a job, with the failing expectations."""
    return job_audit(reads, job_id, destination)


@router.get("/log")
def log(
    reads: ReadsOfRequest,
    job_id: str,
    destination: Destination = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of lines.")] = 200,
) -> JobLog:
    """Return the newest lines of a job's event log, also while the job runs."""
    return job_log(reads, job_id, destination, limit)


@router.get("/report")
def report(reads: ReadsOfRequest, job_id: str, destination: Destination = None) -> JobReport:
    """Return the report of an ended job. The result of each file is in `/files`."""
    return job_report(reads, job_id, destination)
