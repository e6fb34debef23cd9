"""The command `lockgate ui`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Final

import typer

from lockgate.storage_core.cli.render import counted, print_line
from lockgate.storage_core.errors import MissingPartError

PORT: Final = 8411


def register(root: typer.Typer) -> None:
    """Add the command; called through the entry-point group `lockgate.commands`."""
    root.command("ui")(serve)


def serve(
    *,
    port: Annotated[int, typer.Option(help="Port to bind; 0: any free port.", min=0, max=65_535)] = PORT,
    destination: Annotated[
        list[str] | None,
        typer.Option(
            "--destination", metavar="DEST", help="Show this destination too; several times for several."
        ),
    ] = None,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Allow recover, abort, revert, sweeps and leave-safe-mode from the pages.",
        ),
    ] = False,
    open_browser: Annotated[
        bool, typer.Option("--open-browser/--no-browser", help="Open the pages in a browser.")
    ] = True,
) -> None:
    """Serve the pages on 127.0.0.1 until Ctrl-C, for the person who has the printed address.

    The address contains a random token, which is valid until the command ends. Without --allow-actions the
    pages are read-only. Actions run in this process.
    """
    try:
        from lockgate.plugins.loopback.server import Loopback  # noqa: PLC0415 - slow to import, may be missing
    except ImportError as error:
        raise MissingPartError(
            f"the pages need {error.name}: run `pip install 'lockgate[pages]'`; nothing was started"
        ) from None

    with Loopback(port, destinations=destination or (), allow_actions=allow_actions) as pages:
        print_line(pages.address)
        sys.stdout.flush()  # the parent process may wait for this line
        if open_browser:
            pages.open_browser()
        with suppress(KeyboardInterrupt):
            pages.serve()
        if running := pages.running_actions:
            print_line(f"{counted(running, 'action')} had not ended: recovery or the next sweep finishes it")
