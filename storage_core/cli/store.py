"""`lockgate store`: whether a store keeps the promises that commits rest on."""

from __future__ import annotations

from typing import Annotated

import typer

from storage_core.cli.render import JsonFlag, print_json, print_line, print_table
from storage_core.errors import UnsupportedStoreError

commands = typer.Typer(help="Try whether a store is one for jobs.", no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """Keep `check` a command of its own: a Typer with one command would become that command."""


@commands.command("check")
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, file:///dir, or a path.")],
    json: JsonFlag = False,
) -> None:
    """Try every promise that commits rest on.

    Works under URL/_lockgate/probe/ and removes what it leaves. Exits with 7 if no job can commit there.
    """
    from storage_core.settings import load_settings  # noqa: PLC0415 - slow to import, see `storage_core.cli`
    from storage_core.stores import open_store  # noqa: PLC0415
    from storage_core.stores.probe import probe  # noqa: PLC0415

    store = open_store(url, load_settings())
    report = probe(store)
    usable = report.capabilities.conditional_create
    if json:
        print_json({"url": store.url, "usable": usable, "report": report})
    else:
        print_table(
            ("promise", "kept", "note"),
            [(finding.name, "yes" if finding.ok else "NO", finding.detail) for finding in report.findings],
            empty="nothing was tried",
        )
        verdict = "can hold jobs" if usable else "cannot hold jobs: it has no conditional create"
        print_line(f"{store.url} {verdict}")
    if not usable:
        raise typer.Exit(UnsupportedStoreError.exit_code)
