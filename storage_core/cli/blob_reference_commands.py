"""`lockgate blobs jobs`, `finish`, `refs` and `drop`: the jobs and references that keep blobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockgate.storage_core.cli.render import JsonFlag, byte_size, moment, print_json, print_line, print_table
from lockgate.storage_core.errors import ConflictError, InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from lockgate.storage_core.blobs.blob_protocol import Blobs
    from lockgate.storage_core.blobs.registry.blob_rows import Reference
    from lockgate.storage_core.blobs.registry.queries import JobBlobs

NO_JOB: Final = "no_job"
_DRY_RUN: Final = "a dry run: nothing was changed; add --yes"


def jobs(*, json: JsonFlag = False) -> None:
    """List the jobs that have blobs, and until when they are kept."""
    with opened_blobs() as blobs:
        found = list(_every_job(blobs))
    if json:
        print_json(found)
    else:
        _show_jobs(found, empty="no job has blobs")


def finish(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job in the list of `lockgate blobs jobs`.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="End it; otherwise only show it.")] = False,
    json: JsonFlag = False,
) -> None:
    """End a job and delete all its blobs at once; without --yes only show the job.

    Deletes the blobs even if there are references to them; the job accepts no further blobs or references.
    Refused for a job that ends with its commit job.
    """
    with opened_blobs() as blobs:
        found = _find_finishable(blobs, job)
        if yes:
            blobs.finish(job)
    if json:
        print_json({"is_dry_run": not yes, "job": found})
        return
    _show_jobs([found], empty="")
    print_line(
        f"job {job} has ended: its bytes are deleted; the next sweep deletes its rows" if yes else _DRY_RUN
    )


def refs(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only to blobs of this job.")] = "",
    blob_key: Annotated[str, typer.Argument(metavar="[KEY]", help="Only to this blob.")] = "",
    *,
    owner: Annotated[str, typer.Option(metavar="OWNER", help="Only of this owner.")] = "",
    json: JsonFlag = False,
) -> None:
    """List references to blobs with owner, creation and expiry."""
    if not (job or owner):
        raise InvalidInputError("give a job, a job and a blob's key, or --owner; nothing was listed")
    with opened_blobs() as blobs:
        found = blobs.references(job_id=job or None, blob_key=blob_key or None, owner=owner or None)
    if json:
        print_json(found)
    else:
        _show_references(found)


def drop(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="Owner in `lockgate blobs put --owner`.")],
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only to blobs of this job.")] = "",
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Drop them; otherwise only list them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Drop an owner's references; without --yes only list them.

    `lockgate blobs sweep` deletes blobs that are then unreferenced for LOCKGATE_RETENTION_INTERVAL_S.
    """
    from lockgate.storage_core.blobs.keys import BlobKey
    from lockgate.storage_core.blobs.registry.references import JOB_OWNER

    if owner == JOB_OWNER:
        raise InvalidInputError(
            f"owner {JOB_OWNER!r} is every job: its references end with the job; nothing was changed; see "
            "`lockgate blobs finish JOB`"
        )
    with opened_blobs() as blobs:
        found = blobs.references(job_id=job or None, owner=owner)
        if yes and not job:
            blobs.drop_owner(owner)
        elif yes:
            for reference in found:
                blobs.drop(job, BlobKey(reference.blob_key), owner)
    if json:
        print_json({"is_dry_run": not yes, "references": found})
        return
    _show_references(found)
    if found:
        print_line(f"{len(found)} references of {owner} dropped" if yes else _DRY_RUN)


def opened_blobs() -> AbstractContextManager[Blobs]:
    """Open the blob server: another process over HTTP, or this process."""
    from lockgate.storage_core.blobs.open_blobs import open_blobs

    return open_blobs(load_settings())


def _every_job(blobs: Blobs) -> Iterator[JobBlobs]:
    after = ""
    while page := blobs.jobs(after=after):
        yield from page
        after = page[-1].job_id


def _find_finishable(blobs: Blobs, job: str) -> JobBlobs:
    """Return a job after checking that it may be ended by hand."""
    if job == NO_JOB:
        raise InvalidInputError(
            f"{NO_JOB} is not a job: its blobs are kept by their references; nothing was changed; see "
            "`lockgate blobs drop OWNER`"
        )
    found = blobs.jobs(job)
    if not found:
        raise ObjectNotFoundError(
            f"job {job} has no blobs and was not submitted; nothing was changed; `lockgate blobs jobs` lists "
            "jobs with blobs"
        )
    if found[0].commit_job and found[0].final_s is None:
        raise ConflictError(
            f"job {job} ends with job {found[0].commit_job} at {found[0].destination}, whose tasks may need "
            f"its blobs; nothing was changed; end that job: `lockgate jobs recover {found[0].destination} "
            f"{found[0].commit_job}`, or `lockgate jobs abort`"
        )
    return found[0]


def _show_jobs(found: Sequence[JobBlobs], *, empty: str) -> None:
    print_table(
        ("job", "blobs", "size", "since (UTC)", "until"),
        [
            (job.job_id, job.blobs, byte_size(job.size_bytes), moment(job.since_s), _until(job))
            for job in found
        ],
        empty=empty,
    )


def _until(job: JobBlobs) -> str:
    if job.job_id == NO_JOB:
        return "each until it is unreferenced"
    if job.final_s is not None:
        return f"ended {moment(job.final_s)}: the next sweep deletes the rest"
    if job.commit_job:
        return f"job {job.commit_job} at {job.destination} ends"
    if job.submitted_s is not None:
        return "its submitter ends it, or `lockgate blobs finish`"
    return "not submitted: each until it is unreferenced"


def _show_references(found: Sequence[Reference]) -> None:
    print_table(
        ("job", "blob key", "owner", "since (UTC)", "expires (UTC)"),
        [
            (
                reference.job_id,
                reference.blob_key,
                reference.owner,
                moment(reference.taken_s),
                None if reference.until_s is None else moment(reference.until_s),
            )
            for reference in found
        ],
        empty="no reference",
    )
