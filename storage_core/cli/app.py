"""The root command, `lockgate`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points, version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from lockgate.storage_core.cli import committers, files, manifest, store, uploads, volume_server
from lockgate.storage_core.cli.blobs import commands as blobs
from lockgate.storage_core.cli.blobs import server as blob_server
from lockgate.storage_core.cli.jobs import commands as jobs
from lockgate.storage_core.cli.journal import commands as journal
from lockgate.storage_core.cli.render import (
    JSON_FLAG,
    JsonFlag,
    exit_code,
    open_null,
    print_error,
    print_json,
    print_line,
    standard_output,
)
from lockgate.storage_core.cli.volumes import commands as volumes

EXTENSIONS = "lockgate.commands"
"""Entry-point group of functions that add commands from packages that the core does not import."""


HELP_SECTIONS: Final = {
    "Jobs and destinations": ("jobs", "manifest", "uploads", "store", "committers", "ui"),
    "Journal, blobs and files": ("journal", "blobs", "blob-server", "files", "volumes", "volume-server"),
    "Airflow and Celery": ("dags", "xcom", "worker", "broker"),
}
"""Commands of each section of `lockgate --help`; all others are in the last one."""


class ReportingGroup(TyperGroup):
    """Reports errors as one line or one JSON document and an exit code, without a traceback."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in sections."""
        left = self.list_commands(ctx)
        rows = {name: (name, self.commands[name].get_short_help_str(formatter.width - 18)) for name in left}
        for section, names in HELP_SECTIONS.items():
            if shown := [rows.pop(name) for name in names if name in rows]:
                with formatter.section(section):
                    formatter.write_dl(shown, col_max=11)
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
    found = version("lockgate")
    if json:
        print_json({"version": found})
    else:
        print_line(f"lockgate {found}")


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
    root.add_typer(jobs.commands, name="jobs")
    root.add_typer(uploads.commands, name="uploads")
    root.add_typer(journal.commands, name="journal")
    root.add_typer(store.commands, name="store")
    root.add_typer(blobs.commands, name="blobs")
    root.add_typer(files.commands, name="files")
    root.add_typer(volumes.commands, name="volumes")
    root.command("blob-server")(blob_server.serve)
    root.command("volume-server")(volume_server.serve)
    root.command("manifest")(manifest.show)
    root.command("committers")(committers.show)
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
