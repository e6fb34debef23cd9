"""`lockgate blobs`: put, get, list, sweep and verify artefacts of jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli import blob_reference_commands
from lockgate.storage_core.cli.blob_reference_commands import NO_JOB, opened_blobs
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
    from lockgate.storage_core.blobs.blob_protocol import Blobs
    from lockgate.storage_core.blobs.registry.blob_rows import Blob
    from lockgate.storage_core.blobs.reports import BlobFinding, BlobSweepReport

commands = typer.Typer(
    help="Put, get, list, release, sweep and verify artefacts of jobs.",
    no_args_is_help=True,
)
commands.command("jobs")(blob_reference_commands.jobs)
commands.command("finish")(blob_reference_commands.finish)
commands.command("refs")(blob_reference_commands.refs)
commands.command("drop")(blob_reference_commands.drop)

JobOption = Annotated[
    str, typer.Option("--job", metavar="JOB", help="Job of the blobs, which need not exist yet.")
]
JobArgument = Annotated[str, typer.Argument(metavar="[JOB]", help="Only of this job.")]


@commands.command("put")
def put(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, or directories of files.")],
    *,
    job: JobOption = NO_JOB,
    recreatable: Annotated[
        bool, typer.Option("--recreatable", help="Store them only locally, because no recovery needs them.")
    ] = False,
    owner: Annotated[
        str, typer.Option(metavar="OWNER", help="Keep them for this owner until its references are dropped.")
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Upload files as one set, of which all are kept until the last one is uploaded.

    Without --owner, a job must be submitted with them within LOCKGATE_RETENTION_INTERVAL_S.
    """
    from lockgate.storage_core.blobs.file_transfer import files_below, upload

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
        [(blob.name, byte_size(blob.size_bytes), blob.blob_key) for blob in uploaded],
        empty="",
    )
    print_line(f"{len(uploaded)} blobs of job {job}")


@commands.command("get")
def get(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job of the blob; no_job for none.")],
    blob_key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the blob.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; by default its name.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Download a blob to a file, which is created after its bytes are verified."""
    from lockgate.storage_core.blobs.file_transfer import fetch_file
    from lockgate.storage_core.blobs.keys import check_blob_key

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
    """List blobs with use, size, age and state."""
    with opened_blobs() as blobs:
        found = list(_every(blobs, job))
    if json:
        print_json(found)
        return
    now_s = time.time()
    print_table(
        ("job", "blob key", "name", "use", "copies", "size", "age", "state"),
        [
            (
                blob.job_id,
                blob.blob_key,
                blob.name or None,
                blob.use,
                "local only" if blob.guarantee == "recreatable" else "local and HA",
                byte_size(blob.size_bytes),
                age(now_s - blob.put_s),
                _state(blob),
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
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; otherwise only list them.")] = False,
    orphans: Annotated[
        bool | None,
        typer.Option(
            "--orphans/--no-orphans",
            help="Search the stores for bytes without a row; by default once a day, and after a crash.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Delete blobs that were unreferenced for a retention interval; without --yes only list them.

    Exits with 6 if a store could not delete something; the next sweep tries again.
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
        bool, typer.Option("--deep", help="Read and hash all bytes; otherwise only check sizes.")
    ] = False,
    heal: Annotated[bool, typer.Option("--heal", help="Replace a damaged copy by an intact one.")] = False,
    json: JsonFlag = False,
) -> None:
    """Check the bytes of every kept blob; exits with 3 if a copy is missing or damaged.

    Without a job, this also counts bytes without a row, which a sweep stages for deletion.
    """
    findings: list[BlobFinding] = []
    checked = size_bytes = 0
    with opened_blobs() as blobs, progress_bar() as progress:
        after: tuple[str, str] | None = ("", "")
        while after is not None:
            page = blobs.verify(job or None, after=after, deep=deep, heal=heal)
            findings += page.findings
            checked, size_bytes, after = checked + page.blobs, size_bytes + page.size_bytes, page.after
            progress("verify", checked, 0)
        sweep_report = None if job else blobs.sweep(dry_run=True, orphans=True, progress=progress)
    if json:
        print_json({"blobs": checked, "size_bytes": size_bytes, "findings": findings, "sweep": sweep_report})
    else:
        _show_findings(findings)
        print_line(f"{checked} blobs, {byte_size(size_bytes)}: {len(findings)} findings")
        if sweep_report is not None:
            _show_orphans(sweep_report)
    if any(not finding.is_healed for finding in findings):
        raise typer.Exit(CorruptBlobError.exit_code)


def _every(blobs: Blobs, job: str) -> Iterator[Blob]:
    after = ("", "")
    while page := blobs.page(job or None, after=after):
        yield from page
        after = (page[-1].job_id, page[-1].blob_key)


def _state(blob: Blob) -> str:
    if blob.deleting_s is not None:
        return "being deleted"
    if blob.staged_s is not None:
        return f"unreferenced since {moment(blob.staged_s)}"
    return "being uploaded" if blob.upload_set else "referenced"


def _show(report: BlobSweepReport) -> None:
    print_table(
        ("job", "blob key", "size", "why"),
        [(blob.job_id, blob.blob_key, byte_size(blob.size_bytes), blob.why) for blob in report.blobs],
        empty="no blob would be deleted" if report.is_dry_run else "no blob was deleted",
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
            ("job", "blob key", "name", "size", "problem", "remedy"),
            [
                (
                    finding.job_id,
                    finding.blob_key,
                    finding.name or None,
                    byte_size(finding.size_bytes),
                    ", ".join(f"{copy} {fault}" for copy, fault in finding.faults.items()),
                    _remedy(finding),
                )
                for finding in findings
            ],
            empty="",
        )


def _remedy(finding: BlobFinding) -> str:
    if finding.is_lost:
        return "lost: upload it again"
    return "healed" if finding.is_healed else "another copy is intact: add --heal"


def _show_orphans(report: BlobSweepReport) -> None:
    from lockgate.storage_core.blobs.reports import Amount, Why

    orphans = report.swept.get(Why.ORPHAN, Amount())
    if not (orphans.blobs or report.aborted_uploads):
        print_line("no orphans, and no uploads without an owner")
        return
    print_line(
        f"{orphans.blobs} orphans, {byte_size(orphans.size_bytes)}, and {report.aborted_uploads} uploads "
        "without an owner: `lockgate blobs sweep --orphans --yes` deletes them"
    )
