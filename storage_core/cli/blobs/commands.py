"""`lockgate blobs`: artefacts of jobs put, fetched, listed, swept and verified."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.blobs import references
from lockgate.storage_core.cli.blobs.opened import opened_blobs
from lockgate.storage_core.cli.blobs.references import NO_JOB
from lockgate.storage_core.cli.render import (
    JsonFlag,
    age,
    byte_size,
    moment,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.errors import CorruptBlobError, StoreUnavailableError

if TYPE_CHECKING:
    from lockgate.storage_core.blobs import Blobs
    from lockgate.storage_core.blobs.registry.rows import Blob
    from lockgate.storage_core.blobs.reports import BlobFinding, BlobSweepReport

commands = typer.Typer(
    help="Put, get, list, let go, sweep and verify artefacts of jobs.",
    no_args_is_help=True,
)
commands.command("jobs")(references.jobs)
commands.command("finish")(references.finish)
commands.command("refs")(references.refs)
commands.command("drop")(references.drop)

JobOption = Annotated[
    str, typer.Option("--job", metavar="JOB", help="For this job, which need not exist yet.")
]
JobArgument = Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job's.")]


@commands.command("put")
def put(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, or directories of files.")],
    *,
    job: JobOption = NO_JOB,
    recreatable: Annotated[
        bool, typer.Option("--recreatable", help="Keep them in the local store only: no recovery needs them.")
    ] = False,
    owner: Annotated[
        str, typer.Option(metavar="OWNER", help="Keep them for this owner until it is dropped.")
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Upload files as one set: all are kept until the last one is in.

    Unless --owner keeps them, the job is to be submitted with them within LOCKGATE_RETENTION_INTERVAL_S.
    """
    from lockgate.storage_core.blobs.upload import files_below, upload  # noqa: PLC0415 - slow to import

    files = files_below(paths)
    with opened_blobs() as blobs, progress_bar() as progress:
        uploaded = upload(
            blobs,
            files,
            job_id=job,
            guarantee="recreatable" if recreatable else "ha",
            owners=[owner] if owner else [],
            progress=progress,
        )
    if json:
        print_json({"job_id": job, "blobs": uploaded})
        return
    print_table(
        ("name", "size", "blob key"),
        [(one.name, byte_size(one.size_bytes), one.blob_key) for one in uploaded],
        empty="",
    )
    print_line(f"{len(uploaded)} blobs of job {job}")


@commands.command("get")
def get(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job of the blob; no_job for none.")],
    blob_key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the blob.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; by default its name.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Fetch a blob into a file; its bytes are verified before the file has its name."""
    from lockgate.storage_core.blobs.download import fetch_file  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.blobs.keys import check_blob_key  # noqa: PLC0415

    checked = check_blob_key(blob_key)
    with opened_blobs() as blobs, progress_bar() as progress:
        fetched = fetch_file(blobs, job, checked, output, progress=progress)
    size_bytes = fetched.stat().st_size
    if json:
        print_json({"file": str(fetched), "size_bytes": size_bytes})
    else:
        print_line(f"{fetched}: {byte_size(size_bytes)}")


@commands.command("list")
def list_all(job: JobArgument = "", *, json: JsonFlag = False) -> None:
    """List blobs: what each is for, its size, its age, what keeps it or when it goes."""
    with opened_blobs() as blobs:
        found = list(_every(blobs, job))
    if json:
        print_json(found)
        return
    now_s = time.time()
    print_table(
        ("job", "blob key", "name", "for", "kept", "size", "age", "standing"),
        [
            (
                blob.job_id,
                blob.blob_key,
                blob.name or None,
                blob.use,
                "local only" if blob.guarantee == "recreatable" else "local and HA",
                byte_size(blob.size_bytes),
                age(now_s - blob.put_s),
                _standing(blob),
            )
            for blob in found
        ],
        empty="no blob" if not job else f"no blob of job {job}",
    )
    if found:
        print_line(f"{len(found)} blobs, {byte_size(sum(blob.size_bytes for blob in found))}")


@commands.command("sweep")
def sweep(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what would go.")] = False,
    orphans: Annotated[
        bool | None,
        typer.Option(
            "--orphans/--no-orphans",
            help="List the stores for bytes that no row knows; by default once a day, and after a crash.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Delete what nothing has referred to for a whole retention interval; without --yes only says what.

    Exits with 6 where a store kept something: the next sweep tries again.
    """
    with opened_blobs() as blobs, progress_bar() as progress:
        report = blobs.sweep(dry_run=not yes, orphans=orphans, progress=progress)
    if json:
        print_json(report)
    else:
        _show(report)
    if report.problems:
        raise typer.Exit(StoreUnavailableError.exit_code)


@commands.command("verify")
def verify(
    job: JobArgument = "",
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all bytes and hash them; else only sizes are looked at.")
    ] = False,
    heal: Annotated[
        bool, typer.Option("--heal", help="Replace a bad copy by the one that is whole.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """See that every blob that is kept has its bytes; exits with 3 where one has not.

    Without a job, bytes that no row knows are counted, too: a sweep stages them.
    """
    findings: list[BlobFinding] = []
    seen = size_bytes = 0
    with opened_blobs() as blobs, progress_bar() as progress:
        after: tuple[str, str] | None = ("", "")
        while after is not None:
            page = blobs.verify(job or None, after=after, deep=deep, heal=heal)
            findings += page.findings
            seen, size_bytes, after = seen + page.blobs, size_bytes + page.size_bytes, page.after
            progress("verify", seen, 0)
        stray = None if job else blobs.sweep(dry_run=True, orphans=True, progress=progress)
    if json:
        print_json({"blobs": seen, "size_bytes": size_bytes, "findings": findings, "sweep": stray})
    else:
        _show_findings(findings)
        print_line(f"{seen} blobs, {byte_size(size_bytes)}: {len(findings)} findings")
        if stray is not None:
            _show_stray(stray)
    if any(not finding.is_healed for finding in findings):
        raise typer.Exit(CorruptBlobError.exit_code)


def _every(blobs: Blobs, job: str) -> Iterator[Blob]:
    after = ("", "")
    while page := blobs.page(job or None, after=after):
        yield from page
        after = (page[-1].job_id, page[-1].blob_key)


def _standing(blob: Blob) -> str:
    if blob.deleting_s is not None:
        return "being deleted"
    if blob.staged_s is not None:
        return f"unreferenced since {moment(blob.staged_s)}"
    return "being uploaded" if blob.upload_set else "referenced"


def _show(report: BlobSweepReport) -> None:
    print_table(
        ("job", "blob key", "size", "why"),
        [(one.job_id, one.blob_key, byte_size(one.size_bytes), one.why) for one in report.blobs],
        empty="no blob is to go" if report.is_dry_run else "no blob went",
    )
    print_line("")
    print_table(
        ("what", "number", "size"),
        [
            (what, number, None if size_bytes is None else byte_size(size_bytes))
            for what, number, size_bytes in report.rows()
        ],
        empty="nothing to do",
    )
    for problem in report.problems:
        print_line(f"left for the next sweep: {problem}")
    if report.is_dry_run:
        print_line("a dry run: nothing was changed; add --yes")


def _show_findings(findings: list[BlobFinding]) -> None:
    if findings:
        print_table(
            ("job", "blob key", "name", "size", "wrong", "what becomes of it"),
            [
                (
                    one.job_id,
                    one.blob_key,
                    one.name or None,
                    byte_size(one.size_bytes),
                    ", ".join(f"{copy} {fault}" for copy, fault in one.faults.items()),
                    _remedy(one),
                )
                for one in findings
            ],
            empty="",
        )


def _remedy(finding: BlobFinding) -> str:
    if finding.is_lost:
        return "lost: upload it again"
    return "healed" if finding.is_healed else "another copy is whole: add --heal"


def _show_stray(report: BlobSweepReport) -> None:
    from lockgate.storage_core.blobs.reports import Amount, Why  # noqa: PLC0415

    orphans = report.swept.get(Why.ORPHAN, Amount())
    if not (orphans.blobs or report.aborted_uploads):
        print_line("no orphans, and no uploads of nobody")
        return
    print_line(
        f"{orphans.blobs} orphans, {byte_size(orphans.size_bytes)}, and {report.aborted_uploads} uploads of "
        "nobody: `lockgate blobs sweep --orphans --yes` takes them"
    )
