"""`lockgate store`: check whether a store can hold jobs, and delete the journal's names of a destination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_line, print_table
from lockgate.storage_core.errors import UnsupportedStoreError

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal

commands = typer.Typer(help="Check whether a store can hold jobs.", no_args_is_help=True)


@commands.command("check")
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, file:///dir, or a path.")],
    json: JsonFlag = False,
) -> None:
    """Test every capability of a store that commits need.

    Writes to URL/_lockgate/probe/ and deletes everything there. Exits with 7 if no job can commit there.
    """
    from lockgate.storage_core.journal.process_journal import configured_journal
    from lockgate.storage_core.settings import load_settings
    from lockgate.storage_core.stores import open_store
    from lockgate.storage_core.stores.probe import probe

    settings = load_settings()
    store = open_store(url, settings)
    report = probe(store)
    has_create = report.capabilities.conditional_create
    journal = None if has_create else configured_journal(settings)
    usable = has_create or journal is not None
    if json:
        arbiter = None if journal is None else journal.url
        print_json({"url": store.url, "usable": usable, "arbiter": arbiter, "report": report})
    else:
        print_table(
            ("promise", "kept", "note"),
            [(finding.name, "yes" if finding.ok else "NO", finding.detail) for finding in report.findings],
            empty="nothing was tested",
        )
        print_line(f"{store.url} {_verdict(has_create, journal)}")
    if not usable:
        raise typer.Exit(UnsupportedStoreError.exit_code)


@commands.command("forget")
def forget(
    url: Annotated[str, typer.Argument(metavar="URL", help="A destination that was deleted by hand.")],
) -> None:
    """Delete the journal's decisions about a destination that was deleted by hand.

    Only needed for a store without conditional create, for which the journal is the arbiter. Refused while
    there are objects in URL/_lockgate/.
    """
    from lockgate.storage_core.clock import SystemClock
    from lockgate.storage_core.commit.setup.capabilities import arbiter_for, forget_destination
    from lockgate.storage_core.settings import load_settings
    from lockgate.storage_core.stores import open_store

    settings = load_settings()
    store = open_store(url, settings)
    journal = arbiter_for(store, settings, SystemClock())
    count = forget_destination(store, journal)
    print_line(f"{store.url}: journal {journal.url} forgot {count} names")


def _verdict(has_create: bool, journal: Journal | None) -> str:
    if has_create:
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
