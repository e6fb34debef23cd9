"""`--journal NAME` of all commands that take a journal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lockgate.storage_core.settings import load_settings, settings_in_effect

WITHOUT: Final = frozenset({"broker", "committers", "dags", "satellite", "spark-jars", "version", "worker"})
"""Commands that use no journal, or all of them."""


def add_journal_option(commands: Iterable[tuple[str, Any]]) -> None:
    """Give each command the option `--journal`, also those of groups."""
    for name, command in commands:
        if isinstance(command, TyperGroup):
            if name not in WITHOUT:
                add_journal_option(command.commands.items())
        elif name not in WITHOUT:
            command.params.append(_option())


def _use_journal(context: typer.Context, name: str) -> str:
    if name and not context.resilient_parsing:
        context.with_resource(settings_in_effect(load_settings().for_journal(name)))
    return name


@cache
def _option() -> Any:
    """Return the option as typer makes it of a function's parameter."""
    command = typer.Typer(add_completion=False)

    @command.command()
    def _with_journal(
        journal: Annotated[
            str,
            typer.Option(
                metavar="NAME",
                callback=_use_journal,
                expose_value=False,
                help="Use only this journal, the default or one of LOCKGATE_JOURNALS.",
            ),
        ] = "",
    ) -> None:
        """Name a journal."""

    return get_command(command).params[0]
