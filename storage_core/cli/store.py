"""`lockgate store`: whether a store keeps the promises that commits rest on, and who does where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lockgate.storage_core.cli.render import JsonFlag, print_json, print_line, print_table
from lockgate.storage_core.errors import UnsupportedStoreError

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal
    from lockgate.storage_core.settings import Settings

commands = typer.Typer(help="Try whether a store is one for jobs.", no_args_is_help=True)


@commands.command("check")
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, file:///dir, or a path.")],
    json: JsonFlag = False,
) -> None:
    """Try every promise that commits rest on.

    Works under URL/_lockgate/probe/ and removes what it leaves. Exits with 7 if no job can commit there.
    """
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415 - slow to import, see `lockgate.storage_core.cli`
    from lockgate.storage_core.stores import open_store  # noqa: PLC0415
    from lockgate.storage_core.stores.probe import probe  # noqa: PLC0415

    settings = load_settings()
    store = open_store(url, settings)
    report = probe(store)
    decides = report.capabilities.conditional_create
    journal = None if decides else _arbiter(settings)
    usable = decides or journal is not None
    if json:
        arbiter = None if journal is None else journal.url
        print_json({"url": store.url, "usable": usable, "arbiter": arbiter, "report": report})
    else:
        print_table(
            ("promise", "kept", "note"),
            [(finding.name, "yes" if finding.ok else "NO", finding.detail) for finding in report.findings],
            empty="nothing was tried",
        )
        print_line(f"{store.url} {_verdict(decides, journal)}")
    if not usable:
        raise typer.Exit(UnsupportedStoreError.exit_code)


@commands.command("forget")
def forget(
    url: Annotated[str, typer.Argument(metavar="URL", help="A destination that was deleted by hand.")],
) -> None:
    """Let the journal forget what it decided at a destination that was deleted by hand.

    Only where the journal is the arbiter of a store without conditional create; elsewhere there is nothing to
    forget. Refused while the store holds anything in URL/_lockgate/.
    """
    from lockgate.storage_core.clock import SystemClock  # noqa: PLC0415 - as above
    from lockgate.storage_core.commit.setup.capabilities import arbiter_for, forget_destination  # noqa: PLC0415
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415
    from lockgate.storage_core.stores import open_store  # noqa: PLC0415

    settings = load_settings()
    store = open_store(url, settings)
    journal = arbiter_for(store, settings, SystemClock())
    count = forget_destination(store, journal)
    print_line(f"{store.url}: journal {journal.url} forgot {count} names")


def _arbiter(settings: Settings) -> Journal | None:
    from lockgate.storage_core.journal.process_journal import configured_journal  # noqa: PLC0415 - as above

    return configured_journal(settings)


def _verdict(decides: bool, journal: Journal | None) -> str:
    if decides:
        return "can hold jobs"
    if journal is None:
        return (
            "cannot hold jobs: it has no conditional create, and LOCKGATE_JOURNAL_URL=none leaves no journal "
            "to decide in its place"
        )
    return (
        f"can hold jobs with journal {journal.url} as the arbiter, for it has no conditional create: every "
        "process of a job needs that journal (LOCKGATE_JOURNAL_URL)"
    )
