"""`lockgate blobs jobs`, `finish`, `refs`, `drop`: what keeps blobs, and its end by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockgate.storage_core.cli.blobs.opened import opened_blobs
from lockgate.storage_core.cli.render import JsonFlag, byte_size, moment, print_json, print_line, print_table
from lockgate.storage_core.errors import ConflictError, InvalidInputError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockgate.storage_core.blobs import Blobs
    from lockgate.storage_core.blobs.registry.queries import JobBlobs
    from lockgate.storage_core.blobs.registry.rows import Reference

NO_JOB: Final = "no_job"
_DRY_RUN: Final = "a dry run: nothing was changed; add --yes"


def jobs(*, json: JsonFlag = False) -> None:
    """List the jobs that have blobs: how many, since when, and what ends them."""
    with opened_blobs() as blobs:
        found = list(_every_job(blobs))
    if json:
        print_json(found)
    else:
        _show_jobs(found, empty="no job has blobs")


def finish(
    job: Annotated[str, typer.Argument(metavar="JOB", help="In the blob stores: `lockgate blobs jobs`.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="End it; without it, only say what would go.")] = False,
    json: JsonFlag = False,
) -> None:
    """End a job that nobody else ends: all its blobs go at once; without --yes only says which job.

    It takes no blob and no reference any more, whatever refers to those that it has. A job that is a commit
    job ends with that one, and is refused here.
    """
    with opened_blobs() as blobs:
        found = _to_finish(blobs, job)
        if yes:
            blobs.finish(job)
    if json:
        print_json({"is_dry_run": not yes, "job": found})
        return
    _show_jobs([found], empty="")
    print_line(
        f"job {job} has ended: its bytes are gone; the next sweep removes its rows" if yes else _DRY_RUN
    )


def refs(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job's.")] = "",
    blob_key: Annotated[str, typer.Argument(metavar="[KEY]", help="Only this blob's.")] = "",
    *,
    owner: Annotated[str, typer.Option(metavar="OWNER", help="Only this owner's.")] = "",
    json: JsonFlag = False,
) -> None:
    """List references: who keeps which blob, since when, and until when if it lapses."""
    if not (job or owner):
        raise InvalidInputError("give a job, a job and a blob's key, or --owner; nothing was listed")
    with opened_blobs() as blobs:
        found = blobs.references(job_id=job or None, blob_key=blob_key or None, owner=owner or None)
    if json:
        print_json(found)
    else:
        _show_references(found)


def drop(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="Of `lockgate blobs put --owner`.")],
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only those to this job's blobs.")] = "",
    *,
    yes: Annotated[bool, typer.Option("--yes", help="End them; without it, only say which.")] = False,
    json: JsonFlag = False,
) -> None:
    """End an owner's references; without --yes only says which.

    What nothing refers to then, `lockgate blobs sweep` deletes after LOCKGATE_RETENTION_INTERVAL_S.
    """
    from lockgate.storage_core.blobs.keys import BlobKey  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.blobs.registry.references import JOB_OWNER  # noqa: PLC0415

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
            for one in found:
                blobs.drop(job, BlobKey(one.blob_key), owner)
    if json:
        print_json({"is_dry_run": not yes, "references": found})
        return
    _show_references(found)
    if found:
        print_line(f"{len(found)} references of {owner} ended" if yes else _DRY_RUN)


def _every_job(blobs: Blobs) -> Iterator[JobBlobs]:
    after = ""
    while page := blobs.jobs(after=after):
        yield from page
        after = page[-1].job_id


def _to_finish(blobs: Blobs, job: str) -> JobBlobs:
    """Return a job that may be ended by hand."""
    if job == NO_JOB:
        raise InvalidInputError(
            f"{NO_JOB} is no job: its blobs go with their references; nothing was changed; see "
            "`lockgate blobs drop OWNER`"
        )
    found = blobs.jobs(job)
    if not found:
        raise ObjectNotFoundError(
            f"job {job} has no blobs and was not submitted; nothing was changed; `lockgate blobs jobs` lists "
            "those that have"
        )
    if found[0].commit_job and found[0].final_s is None:
        raise ConflictError(
            f"job {job} ends with job {found[0].commit_job} at {found[0].destination}, whose tasks may need "
            f"its blobs; nothing was changed; end that one: `lockgate jobs recover {found[0].destination} "
            f"{found[0].commit_job}`, or `lockgate jobs abort`"
        )
    return found[0]


def _show_jobs(found: Sequence[JobBlobs], *, empty: str) -> None:
    print_table(
        ("job", "blobs", "size", "since (UTC)", "until"),
        [
            (one.job_id, one.blobs, byte_size(one.size_bytes), moment(one.since_s), _until(one))
            for one in found
        ],
        empty=empty,
    )


def _until(job: JobBlobs) -> str:
    if job.job_id == NO_JOB:
        return "each until nothing refers to it"
    if job.final_s is not None:
        return f"ended {moment(job.final_s)}: what is left goes with the next sweep"
    if job.commit_job:
        return f"job {job.commit_job} at {job.destination} ends"
    if job.submitted_s is not None:
        return "whoever submitted it ends it, or `lockgate blobs finish`"
    return "not submitted: each until nothing refers to it"


def _show_references(found: Sequence[Reference]) -> None:
    print_table(
        ("job", "blob key", "owner", "since (UTC)", "lapses (UTC)"),
        [
            (
                one.job_id,
                one.blob_key,
                one.owner,
                moment(one.taken_s),
                None if one.until_s is None else moment(one.until_s),
            )
            for one in found
        ],
        empty="no reference",
    )
