"""`lockgate store`: check whether a store can hold jobs, and delete the journal's names of a destination."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lockgate.storage_core.cli.render import (
    Destination,
    JsonFlag,
    counted,
    print_json,
    print_line,
    print_table,
)
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.errors import (
    ConflictError,
    DestinationNotFoundError,
    MalformedRecordError,
    UnsupportedStoreError,
)
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal
    from lockgate.storage_core.settings import Settings
    from lockgate.storage_core.stores import Store
    from lockgate.storage_core.stores.probe import ProbeReport

_KEPT: Final[dict[bool | None, str]] = {True: "yes", False: "NO", None: "?"}

commands = typer.Typer(help="Check whether a store can hold jobs.", no_args_is_help=True)


@commands.command("check")
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, file:///dir, or a path.")],
    json: JsonFlag = False,
    again: Annotated[
        bool, typer.Option("--again", help="Let the next job test it again; run it while no job is at work.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the promises as a Markdown table.")
    ] = False,
) -> None:
    """Test every capability of a store that commits need, and read the whole log of the destination.

    Writes to URL/_lockgate/probe/ and deletes everything there. Exits with 7 if no job can commit there, with
    3 if a record of the log is damaged, with 8 if another destination lies above or below URL, with 15 if
    there is no such directory: none is created.
    """
    from lockgate.storage_core.commit.destination.overlap import overlap_findings
    from lockgate.storage_core.commit.recovery.log_check import check_log
    from lockgate.storage_core.commit.setup.capabilities import probe_again
    from lockgate.storage_core.commit.uploads.upload_owner import S3aJobs
    from lockgate.storage_core.journal.process_journal import configured_journal
    from lockgate.storage_core.stores import open_store

    settings = load_settings()
    store = open_store(url, settings)
    report = _probe(store, settings)
    damaged = check_log(store)
    overlaps = overlap_findings(store, settings)
    magic = S3aJobs(store).inside()
    if again:
        probe_again(store)
    has_create = report.capabilities.conditional_create
    journal = None if has_create else configured_journal(settings)
    accepted = not report.dangers or settings.accept_unsafe_store
    usable = (has_create or journal is not None) and not report.refusals and accepted
    rows = [(finding.name, _KEPT[finding.ok], finding.detail) for finding in [*report.findings, *overlaps]]
    if markdown:
        print_line(f"| promise | {store.url} | note |")
        print_line("|---|---|---|")
        for row in rows:
            print_line(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |")
    elif json:
        arbiter = None if journal is None else journal.url
        print_json(
            {
                "url": store.url,
                "usable": usable,
                "arbiter": arbiter,
                "report": report,
                "overlaps": [found for found in overlaps if not found.ok],
                "log": damaged,
                "s3a_job": magic,
            }
        )
    else:
        print_table(("promise", "kept", "note"), rows, empty="nothing was tested")
        tested = counted(len(report.findings), "promise")
        print_line(f"tested {tested} in {store.url}/_lockgate/probe/ and {_left(report)}")
        for fault in damaged:
            print_line(f"turn {fault.turn} of the log: {fault.fault}")
        log = f"damaged; `lockgate store repair {store.url}` shows what can be rebuilt" if damaged else "read"
        print_line(f"log of the destination: {log}")
        if magic is not None:
            print_line(
                f"{magic} is of an S3A magic committer: its job may be at work here; set "
                "fs.s3a.committer.abort.pending.uploads=false for it, or it aborts the uploads of every job"
            )
        print_line(f"{store.url} {_verdict(report, journal, accepted=accepted)}")
    if not usable:
        raise typer.Exit(UnsupportedStoreError.exit_code)
    if damaged:
        raise typer.Exit(MalformedRecordError.exit_code)
    if not all(finding.ok for finding in overlaps):
        raise typer.Exit(ConflictError.exit_code)


@commands.command("repair")
def repair(
    destination: Destination,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only report.")] = False,
    json: JsonFlag = False,
) -> None:
    """Rebuild damaged records of a destination's log, each only where it is certain what it said.

    Without --yes nothing is changed. The old bytes are kept in _lockgate/quarantine/. Run it while no job
    commits at the destination. Exits with 3 if a record cannot be rebuilt.
    """
    from lockgate.storage_core.commit.recovery.log_repair import repair_log
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused

    refuse_unused(destination)
    found = repair_log(destination, dry_run=not yes)
    if json:
        print_json(found)
    else:
        print_table(
            ("turn", "record", "fault", "action" if yes else "would do"),
            [(each.turn, each.key, each.fault, each.action) for each in found],
            empty=f"every record of the log of {destination} can be read",
        )
        if found and not yes:
            print_line("a dry run: nothing was changed; add --yes")
    if not all(each.is_certain for each in found):
        raise typer.Exit(MalformedRecordError.exit_code)


@commands.command("forget")
def forget(
    url: Annotated[str, typer.Argument(metavar="URL", help="A destination that was deleted by hand.")],
) -> None:
    """Delete the journal's decisions about a destination that was deleted by hand.

    Only needed for a store without conditional create, for which the journal is the arbiter. Refused while
    there are objects in URL/_lockgate/.
    """
    from lockgate.storage_core.commit.setup.capabilities import arbiter_for, forget_destination
    from lockgate.storage_core.stores import open_store

    settings = load_settings()
    store = open_store(url, settings)
    journal = arbiter_for(store, settings, SystemClock())
    count = forget_destination(store, journal)
    print_line(f"{store.url}: journal {journal.url} forgot {count} names")


def _probe(store: Store, settings: Settings) -> ProbeReport:
    """Probe a store; in a directory as a separate store below it, which goes with its locks and folders."""
    from lockgate.storage_core.stores import open_store
    from lockgate.storage_core.stores.probe import probe

    if not store.url.startswith("file://"):
        return probe(store, thorough=True)
    root = Path(store.url.removeprefix("file://"))
    if not root.is_dir():
        raise DestinationNotFoundError(
            f"directory {root} does not exist; nothing was tested or created; create it, or test the "
            "directory in which a job will create it"
        )
    parents = [root / "_lockgate" / "probe", root / "_lockgate"]
    inside = parents[0] / new_token()
    try:
        report = probe(open_store(str(inside), settings), thorough=True)
    finally:
        shutil.rmtree(inside, ignore_errors=True)
        with suppress(OSError):  # it has something else
            for folder in parents:
                folder.rmdir()
    return report if inside.exists() else msgspec.structs.replace(report, left=[])


def _left(report: ProbeReport) -> str:
    if not report.left:
        return "deleted all that was written there"
    left = counted(len(report.left), "key")
    return f"could not delete {left}, such as {report.left[0]}: delete them by hand"


def _verdict(report: ProbeReport, journal: Journal | None, *, accepted: bool) -> str:
    if report.refusals:
        return "cannot hold jobs: nothing can be written there"
    if not accepted:
        return (
            "is refused, because a job there could lose files or rows: "
            + report.dangers[0].name
            + "; to take "
            "that risk, set LOCKGATE_ACCEPT_UNSAFE_STORE=true"
        )
    if report.capabilities.conditional_create:
        return "can hold jobs"
    if journal is None:
        return (
            "cannot hold jobs: it has no conditional create, and with LOCKGATE_JOURNAL_URL=none there is no "
            "journal as the arbiter"
        )
    return (
        f"can hold jobs with journal {journal.url} as the arbiter, because it has no conditional create: "
        "every process of a job needs that journal (LOCKGATE_JOURNAL_URL)"
    )
