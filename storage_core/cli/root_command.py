"""The root command, `lockgate`, and those that describe it: `lockgate version` and `lockgate committers`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from lockgate.storage_core import VERSION
from lockgate.storage_core.cli import (
    blob_commands,
    compaction_commands,
    file_commands,
    history_commands,
    job_commands,
    journal_commands,
    satellite_commands,
    server_commands,
    spark_commands,
    store_commands,
    table_commands,
    upload_commands,
    volume_commands,
)
from lockgate.storage_core.cli.journal_option import add_journal_option
from lockgate.storage_core.cli.render import (
    JSON_FLAG,
    JsonFlag,
    exit_code,
    open_null,
    print_error,
    print_json,
    print_line,
    print_table,
    standard_output,
)

EXTENSIONS = "lockgate.commands"
"""Entry-point group of functions that add commands from packages that the core does not import."""


HELP_SECTIONS: Final = {
    "Jobs and destinations": (
        *("jobs", "manifest", "history", "diff", "tag", "keep", "revert", "tables"),
        *("destinations", "compact", "uploads", "store", "committers", "ui"),
    ),
    "Journal, blobs and files": ("journal", "blobs", "blob-server", "files", "volumes", "satellite"),
    "Airflow, Celery and Spark": ("dags", "xcom", "worker", "broker", "spark-jars"),
}
"""Commands of each section of `lockgate --help`; all others are in the last one."""

COMMITTER_COLUMNS: Final = (
    "name",
    "uncommitted data",
    "visible at",
    "repeatable",
    "on",
    "use it for",
)


class ReportingGroup(TyperGroup):
    """Reports errors as one line or one JSON document and an exit code, without a traceback."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        add_journal_option(self.commands.items())

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in sections."""
        left = self.list_commands(ctx)
        rows = {name: (name, self.commands[name].get_short_help_str(formatter.width - 19)) for name in left}
        for section, names in HELP_SECTIONS.items():
            if shown := [rows.pop(name) for name in names if name in rows]:
                with formatter.section(section):
                    formatter.write_dl(shown, col_max=12)
        with formatter.section("Other"):
            formatter.write_dl(list(rows.values()))

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and report its errors."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("LOCKGATE_DEBUG"):
                raise
            print_error(error, as_json=ctx.meta.get(JSON_FLAG, False))
            raise typer.Exit(exit_code(error)) from None


def show_version(json: JsonFlag = False) -> None:
    """Print Lockgate's version."""
    if json:
        print_json({"version": VERSION})
    else:
        print_line(f"lockgate {VERSION}")


def show_committers(json: JsonFlag = False) -> None:
    """List the committers and their guarantees."""
    rows = committer_rows()
    if json:
        print_json([dict(zip(COMMITTER_COLUMNS, row, strict=True)) for row in rows])
        return
    print_table(COMMITTER_COLUMNS, rows, empty="there is no committer")


def committer_rows() -> list[tuple[str, ...]]:
    """Return a row of `COMMITTER_COLUMNS` for each committer; the documentation has the same table."""
    from lockgate.storage_core.commit.committers import COMMITTERS

    return [
        (
            committer.name,
            committer.uncommitted,
            committer.visible_at,
            "yes" if committer.visible_at == "job commit" else "no",
            committer.place,
            committer.use,
        )
        for committer in COMMITTERS.values()
    ]


def _print_version(wanted: bool) -> None:
    if wanted:
        show_version()
        raise typer.Exit


def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Job output that appears all at once, or not at all."""


def build() -> typer.Typer:
    """Return the root command, including the commands of other packages."""
    root = typer.Typer(
        name="lockgate",
        cls=ReportingGroup,
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help takes half the time, because it does not import rich
    )
    root.add_typer(job_commands.commands, name="jobs")
    root.add_typer(upload_commands.commands, name="uploads")
    root.add_typer(journal_commands.commands, name="journal")
    root.add_typer(store_commands.commands, name="store")
    root.add_typer(table_commands.commands, name="tables")
    root.add_typer(blob_commands.commands, name="blobs")
    root.add_typer(spark_commands.commands, name="spark-jars")
    root.add_typer(file_commands.commands, name="files")
    root.add_typer(volume_commands.commands, name="volumes")
    root.add_typer(satellite_commands.commands, name="satellite")
    root.command("blob-server")(server_commands.serve_blobs)
    root.command("manifest")(history_commands.show)
    root.command("history")(history_commands.history)
    root.command("diff")(history_commands.diff)
    root.command("tag")(history_commands.tag)
    root.command("keep")(history_commands.keep)
    root.command("revert")(history_commands.revert)
    root.add_typer(compaction_commands.commands, name="destinations")
    root.command("compact")(compaction_commands.compact)
    root.command("committers")(show_committers)
    root.command("version")(show_version)
    for extension in entry_points(group=EXTENSIONS):
        extension.load()(root)
    return root


def main() -> None:
    """Run `lockgate` with this process's arguments."""
    sys.stdout = sys.stdout or open_null()  # None: the caller has closed it, as `>&-` does
    sys.stderr = sys.stderr or open_null()
    try:
        build()()
    finally:
        with standard_output():
            sys.stdout.flush()
