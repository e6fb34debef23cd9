"""`lockgate tables`: have a destination read as a table of another format, and keep it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from lockgate.storage_core.errors import ConflictError, InvalidInputError, MalformedRecordError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.commit.destination.log import DestinationLog
    from lockgate.storage_core.tables.maintenance import TableCheck, TableStatus

DeltaFlag = Annotated[bool, typer.Option("--delta", help="The Delta table, in _delta_log/.")]
IcebergFlag = Annotated[bool, typer.Option("--iceberg", help="The Iceberg table, in _iceberg/.")]

commands = typer.Typer(help="Project a destination into Delta and Iceberg tables.", no_args_is_help=True)


@commands.command("enable")
def enable(
    destination: Destination,
    *,
    delta: DeltaFlag = False,
    iceberg: IcebergFlag = False,
    from_turn: Annotated[
        int | None,
        typer.Option("--from-turn", metavar="N", help="Turn of the first version; by default the last one."),
    ] = None,
    footers: Annotated[
        bool, typer.Option(help="Read the statistics of the first version's files from their footers.")
    ] = True,
    json: JsonFlag = False,
) -> None:
    """Show each turn of a destination as a version of a table, from now on; idempotent.

    The first version has all files that are live after its turn. Exits with 10 if a table is behind.
    """
    from lockgate.storage_core.commit.destination.projection import enable_tables, last_decided, read_tables
    from lockgate.storage_core.tables.maintenance import catch_up
    from lockgate.storage_core.tables.maintenance import footers as read_footers

    names, log = _formats(delta=delta, iceberg=iceberg), opened(destination)
    tables = read_tables(log.store)
    known = set() if tables is None else set(tables.formats)
    first = last_decided(log) if from_turn is None else from_turn
    is_new = first > 0 and not known.issuperset(names)
    statistics = read_footers(log, first, load_settings()) if footers and is_new else None
    enable_tables(log, names, SystemClock(), from_turn=from_turn, statistics=statistics)
    _report(catch_up(log), json=json)


@commands.command("status")
def status(destination: Destination, json: JsonFlag = False) -> None:
    """Print how far each table of a destination is behind its log. Exits with 10 if one is behind."""
    from lockgate.storage_core.tables.maintenance import status_of

    _report(status_of(opened(destination)), json=json)


@commands.command("check")
def check(destination: Destination, json: JsonFlag = False) -> None:
    """Compare each table with the log and the files, and print what a reader of it sees.

    Exits with 3 if a table has other files than the log after its turn, or one that does not exist.
    """
    from lockgate.storage_core.tables.maintenance import check_tables

    found = check_tables(opened(destination))
    if json:
        print_json(found)
    else:
        rows = [(each.format, each.turn, each.files, each.rows, _difference(each)) for each in found]
        columns = ("format", "turn", "files", "rows", "a reader of it sees")
        print_table(columns, rows, empty=f"{destination} has no tables")
    if not all(each.is_equal for each in found):
        raise typer.Exit(MalformedRecordError.exit_code)


@commands.command("repair")
def repair(
    destination: Destination,
    yes: Annotated[
        bool, typer.Option("--yes", help="Set foreign versions aside; otherwise only name them.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Bring each table up to the log; with --yes set versions of other programs aside first.

    Without --yes nothing that another program wrote is touched. The old bytes are kept in
    _lockgate/quarantine/tables/. Data files are never touched. Exits with 10 if a table is behind.
    """
    from lockgate.storage_core.tables.maintenance import catch_up, set_aside_foreign

    log = opened(destination)
    aside = set_aside_foreign(log, dry_run=not yes)
    found = catch_up(log)
    if not json:
        for key in (key for keys in aside.values() for key in keys):
            print_line(f"{'set aside' if yes else 'would set aside, with --yes:'} {key}")
    _report(found, json=json)


@commands.command("register")
def register(
    destination: Destination,
    catalog: Annotated[str, typer.Option(help="Name of a catalogue in pyiceberg's configuration.")],
    table: Annotated[str, typer.Option(help="Namespace and name of the table there: lake.sales.")],
    json: JsonFlag = False,
) -> None:
    """Let a catalogue's table be the newest Iceberg snapshot of a destination; idempotent.

    Run it after commits, for engines that find tables in a catalogue only. A catalogue with a later turn
    keeps it. Exits with 8 if the catalogue has another table of this name.
    """
    from lockgate.storage_core.tables.iceberg_catalog import register as register_in

    turn = register_in(opened(destination), catalog, table)
    if json:
        print_json({"catalog": catalog, "table": table, "turn": turn})
    else:
        print_line(f"{table} in {catalog} is turn {turn}")


@commands.command("disable")
def disable(
    destination: Destination, delta: DeltaFlag = False, iceberg: IcebergFlag = False, json: JsonFlag = False
) -> None:
    """Stop showing later turns in a table; its versions stay, and readers see the last one."""
    from lockgate.storage_core.commit.destination.projection import disable_tables
    from lockgate.storage_core.tables.maintenance import status_of

    log = opened(destination)
    disable_tables(log.store, _formats(delta=delta, iceberg=iceberg), SystemClock())
    found = status_of(log)
    if json:
        print_json(found)
    else:
        _print(found)


def _formats(**wanted: bool) -> list[str]:
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    if not names:
        raise InvalidInputError("name a table format: --delta or --iceberg; nothing was changed")
    return names


def opened(destination: str) -> DestinationLog:
    """Return the log of a destination; refuse one where no job was ever set up."""
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused
    from lockgate.storage_core.tables.maintenance import open_destination

    refuse_unused(destination)
    return open_destination(destination, load_settings())


def _report(found: list[TableStatus], *, json: bool) -> None:
    """Print how far tables are; exit with 10 if one is behind, and with 8 if another program writes it."""
    if json:
        print_json(found)
    else:
        _print(found)
    if any(each.enabled and each.detail and each.turn is None for each in found):
        raise typer.Exit(ConflictError.exit_code)
    if any(each.enabled and each.behind for each in found):
        raise typer.Exit(10)


def _print(found: list[TableStatus]) -> None:
    columns = ("format", "state", "first turn", "turn", "behind", "note")
    rows = [
        (
            each.format,
            "enabled" if each.enabled else "disabled",
            each.first_turn,
            each.turn,
            None if each.behind is None else counted(each.behind, "turn"),
            each.detail,
        )
        for each in found
    ]
    print_table(columns, rows, empty="there are no tables; `lockgate tables enable` makes one")


def _difference(found: TableCheck) -> str:
    if found.is_equal:
        return "the files of the log after that turn"
    parts = [found.detail] if found.detail else []
    for what, keys in (("not", found.missing), ("also", found.extra), ("deleted files:", found.gone)):
        parts += [f"{what} {', '.join(keys)}"] if keys else []
    return "; ".join(parts)
