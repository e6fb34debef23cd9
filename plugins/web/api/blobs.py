"""Blobs by job, what keeps each of them, and when it goes.

In a journal that this process reads, a page is one query; a blob server elsewhere answers over HTTP.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal

from fastapi import APIRouter

from lockgate.plugins.web.answers import DEFAULT_LIMIT, After, Limit, Model, Page, key_after, page_of
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.blobs.keys import NO_JOB
from lockgate.storage_core.blobs.open_blobs import open_client
from lockgate.storage_core.blobs.registry import queries
from lockgate.storage_core.blobs.registry.blob_rows import Blob, Reference
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.journal import Reading

router = APIRouter(prefix="/blobs/jobs", tags=["blobs"])

OWNERS: Final = 20
"""Owners that a row names."""

_UNNAMED: Final = (
    "the owners of blobs are known to the blob server only: `lockgate blobs refs JOB` lists them"
)


BlobState = Literal["uploading", "referenced", "unreferenced", "deleting"]


class BlobJobRow(Model):
    """The blobs of one job.

    Attributes:
        blob_job: Id of the job in the blob stores; `no_job` for blobs without one.
        since_s: When the oldest blob was put.
        destination: Destination of the job whose artefacts they are; None if there is none.
        job_id: Id of that job.
        ended_s: When it ended and its blobs became deletable; None before.
        until: When the blobs go, in one sentence.
    """

    blob_job: str
    blobs: int
    size_bytes: int
    since_s: float
    destination: str | None
    job_id: str | None
    ended_s: float | None
    until: str


class BlobRow(Model):
    """A blob.

    Attributes:
        name: Name of the original file; may be empty.
        goes_s: Time from which a sweep deletes it; None while something keeps it.
        owners: Up to 20 owners of references that keep it.
    """

    blob_key: str
    name: str
    use: Literal["library", "message", "log", "other"]
    is_in_ha_store: bool
    size_bytes: int
    put_s: float
    state: BlobState
    goes_s: float | None
    owners: tuple[str, ...]


@router.get("")
def blob_jobs(reads: ReadsOfRequest, after: After = None, limit: Limit = DEFAULT_LIMIT) -> Page[BlobJobRow]:
    """List the jobs that have blobs, by name."""
    key = key_after("blob-jobs", after, str)
    try:
        found = _jobs(reads, key[0] if key else "", limit + 1)
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    return page_of("blob-jobs", found, limit, lambda job: (job.job_id,), _job_row)


@router.get("/{blob_job}")
def blobs_of_job(
    reads: ReadsOfRequest, blob_job: str, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> Page[BlobRow]:
    """List the blobs of a job, by key.

    Raises:
        ObjectNotFoundError: The job has no blobs and was not submitted.
    """
    key = key_after("blobs", after, str)
    try:
        found, owners, is_known = _blobs(reads, blob_job, key[0] if key else "", limit + 1)
    except ObjectNotFoundError:
        raise
    except LockgateError as error:
        return Page(items=(), unknown=(str(error),))
    retention_s = reads.settings.retention_interval_s
    return page_of(
        "blobs",
        found,
        limit,
        lambda blob: (blob.blob_key,),
        lambda blob: _blob_row(blob, owners, retention_s),
        unknown=() if is_known else (_UNNAMED,),
    )


def _jobs(reads: Reads, after: str, count: int) -> Sequence[JobBlobs]:
    url = reads.settings.blob_server_url
    if url is None:
        return reads.journal(lambda reading: queries.jobs_of(reading, after=after, limit=count))

    def ask() -> Sequence[JobBlobs]:
        with open_client(reads.settings) as blobs:
            return blobs.jobs(after=after)

    return reads.store(url, ask)


def _blobs(
    reads: Reads, job: str, after: str, count: int
) -> tuple[Sequence[Blob], dict[str, list[str]], bool]:
    """Return blobs, their owners by key, and whether the owners are known."""
    owners: dict[str, list[str]] = defaultdict(list)
    url = reads.settings.blob_server_url
    if url is not None:

        def ask() -> tuple[Sequence[JobBlobs], Sequence[Blob]]:
            with open_client(reads.settings) as blobs:
                return blobs.jobs(job), blobs.page(job, after=(job, after))

        jobs, found = reads.store(url, ask)
        _refuse_unknown(job, jobs)
        return found, owners, False

    def query(reading: Reading) -> tuple[Sequence[JobBlobs], Sequence[Blob], Sequence[Reference]]:
        jobs = () if after else queries.jobs_of(reading, job)
        page = queries.blobs_of(reading, job, after=(job, after))[:count]
        keys = [blob.blob_key for blob in page]
        return jobs, page, queries.references_to(reading, job, keys)

    jobs, found, references = reads.journal(query)
    if not after:
        _refuse_unknown(job, jobs)
    for reference in references:
        if len(owners[reference.blob_key]) < OWNERS:
            owners[reference.blob_key].append(reference.owner)
    return found, owners, True


def _refuse_unknown(job: str, jobs: Sequence[JobBlobs]) -> None:
    if not jobs:
        raise ObjectNotFoundError(f"job {job} has no blobs and was not submitted; nothing was read")


def _job_row(job: JobBlobs) -> BlobJobRow:
    return BlobJobRow(
        blob_job=job.job_id,
        blobs=job.blobs,
        size_bytes=job.size_bytes,
        since_s=job.since_s,
        destination=job.destination or None,
        job_id=job.commit_job or None,
        ended_s=job.final_s,
        until=_until(job),
    )


def _until(job: JobBlobs) -> str:
    if job.job_id == NO_JOB:
        return "Each is kept until it has no reference."
    if job.final_s is not None:
        return "The job has ended; the next sweep deletes the rest."
    if job.commit_job:
        return f"Kept until job {job.commit_job} ends."
    if job.submitted_s is not None:
        return "Kept until its submitter ends the job."
    return "The job was not submitted; each is kept until it has no reference."


def _state(blob: Blob) -> BlobState:
    if blob.deleting_s is not None:
        return "deleting"
    if blob.staged_s is not None:
        return "unreferenced"
    return "uploading" if blob.upload_set else "referenced"


def _blob_row(blob: Blob, owners: dict[str, list[str]], retention_s: float) -> BlobRow:
    return BlobRow(
        blob_key=blob.blob_key,
        name=blob.name,
        use=blob.use,
        is_in_ha_store=blob.guarantee == "ha",
        size_bytes=blob.size_bytes,
        put_s=blob.put_s,
        state=_state(blob),
        goes_s=None if blob.staged_s is None else blob.staged_s + retention_s,
        owners=tuple(owners.get(blob.blob_key, ())),
    )
