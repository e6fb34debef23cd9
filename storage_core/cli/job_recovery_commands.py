"""`lockgate jobs recover` and `rescan`: end jobs whose drivers have died, and update the index of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import (
    JOB_HELP,
    Destination,
    JsonFlag,
    counted,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.errors import (
    InvalidInputError,
    LockgateError,
    MalformedRecordError,
    OutcomeUnknownError,
)
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.commit.recovery.recover import RecoveryResult
    from lockgate.storage_core.concurrency import Progress


def recover(
    job: Annotated[
        list[str] | None, typer.Argument(metavar="[DEST] [JOB]", help=JOB_HELP, show_default=False)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All jobs that have not ended, of DEST or in the journal.")
    ] = False,
    scan: Annotated[
        str | None,
        typer.Option(metavar="URL", help="All jobs with uploads or folders below s3://bucket/prefix or DIR."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")] = False,
    json: JsonFlag = False,
) -> None:
    """Finish or abort jobs whose drivers have died.

    Decided jobs are finished at once. Undecided jobs: lapsed ones are aborted or resumed, as configured at
    set-up; live and suspended ones are left alone. `--scan` finds jobs by their open uploads and folders,
    even if the journal is lost, and registers them in the journal. Exits with 3 if markers contradict each
    other or access is denied, with 10 if a job is not recovered yet.
    """
    results: list[RecoveryResult] = []
    try:
        with progress_bar() as progress:
            if scan is None:
                found = _recover(job or [], every=every, dry_run=dry_run, progress=progress)
            else:
                found = _scan(scan, job or [], every=every, dry_run=dry_run, progress=progress)
            for result in found:
                results.append(result)  # results before an error are shown as well
                drop_blobs(result.artefacts)
    except LockgateError:
        if results and not json:
            _print_recovered(results, dry_run=dry_run)
        raise
    if json:
        print_json(results)
    else:
        _print_recovered(results, dry_run=dry_run)
    if every and job:
        catch_up_tables(job[0], dry_run=dry_run, json=json)
    _exit_by(results)


def rescan(
    destination: Destination,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report differences.")] = False,
    json: JsonFlag = False,
) -> None:
    """Update the journal's index of jobs from a destination's folders; changes no job."""
    from lockgate.storage_core.commit.recovery.registry_rebuild import rescan as compare
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused

    with progress_bar() as progress:
        found = list(compare(destination, dry_run=dry_run, progress=progress))
    if not found:  # a destination that was deleted still has jobs in the journal
        refuse_unused(destination)
    if json:
        print_json(found)
    else:
        print_table(
            ("job", "would do" if dry_run else "action", "before", "after", "why"),
            [(change.job_id, change.action, change.was, change.now, change.detail) for change in found],
            empty=f"the index is up to date for {destination}",
        )


def catch_up_tables(destination: str, *, dry_run: bool, json: bool) -> None:
    """Bring the tables of a destination up to its log, and print which are behind."""
    from lockgate.storage_core.tables.maintenance import catch_up, open_destination, status_of

    log = open_destination(destination, load_settings())
    for table in status_of(log) if dry_run else catch_up(log):
        if not json and table.enabled and (table.detail or table.behind):
            behind = "some turns" if table.behind is None else counted(table.behind, "turn")
            print_line(f"{table.format} is {behind} behind{f': {table.detail}' if table.detail else ''}")


def drop_blobs(blob_job: str) -> None:
    """Delete the artefacts of a job if it has any and has ended."""
    if blob_job:
        from lockgate.storage_core.blobs.open_blobs import delete_ended

        delete_ended(blob_job, load_settings())


def _recover(words: list[str], *, every: bool, dry_run: bool, progress: Progress) -> Iterable[RecoveryResult]:
    from lockgate.storage_core.cli.job_index import is_destination, locate
    from lockgate.storage_core.commit.recovery.expired_jobs import recover_everything
    from lockgate.storage_core.commit.recovery.recover import recover_all, recover_job
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused

    match words, every:
        case [], True:
            return recover_everything(load_settings(), dry_run=dry_run, progress=progress)
        case [destination], True:
            refuse_unused(destination)
            return recover_all(destination, dry_run=dry_run, progress=progress)
        case [*_, job], False if len(words) > 1 or not is_destination(job):
            destination, job_id = locate(words)
            return [recover_job(destination, job_id, dry_run=dry_run, progress=progress)]
    raise InvalidInputError(
        "jobs recover: give either one JOB or --all, each with or without its DEST, or --scan URL; "
        "nothing was done"
    )


def _print_recovered(results: list[RecoveryResult], *, dry_run: bool) -> None:
    print_table(
        ("job", "destination", "before", "lease", "would do" if dry_run else "action", "after", "why"),
        [(r.job_id, r.destination, r.found, r.lease, r.action, r.ended, r.detail) for r in results],
        empty="no job is unfinished",
    )


def _scan(
    url: str, words: list[str], *, every: bool, dry_run: bool, progress: Progress
) -> Iterable[RecoveryResult]:
    from lockgate.storage_core.commit.recovery.prefix_scan import scan

    if words or every:
        raise InvalidInputError(
            "jobs recover: --scan URL finds every job below that URL: omit DEST, JOB and --all; nothing was "
            "done"
        )
    return scan(url, dry_run=dry_run, progress=progress)


def _exit_by(results: list[RecoveryResult]) -> None:
    """Exit with the code for results that need an operator, or that are not recovered."""
    if any(result.needs_an_operator for result in results):
        raise typer.Exit(MalformedRecordError.exit_code)
    if any(result.ended is None for result in results):
        raise typer.Exit(OutcomeUnknownError.exit_code)
