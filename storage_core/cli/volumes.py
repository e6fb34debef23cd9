"""`lockgate volumes`: the volumes of appendable files."""

from __future__ import annotations

import typer

from lockgate.storage_core.cli.render import JsonFlag, byte_size, moment, print_json_list, print_table

commands = typer.Typer(help="Volumes of appendable files.", no_args_is_help=True)


@commands.callback()
def group() -> None:
    """Keep `list` a command of the group while it is the only one."""


@commands.command("list")
def list_volumes(*, json: JsonFlag = False) -> None:
    """List the volumes that the journal or this machine knows, with their space."""
    import msgspec

    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.settings import Settings

    with open_files(Settings(), writes=False) as files:
        found = files.volume_statuses()
    if json:
        print_json_list((msgspec.structs.asdict(one) for one in found), name="volumes")
        return
    rows = [
        (
            one.volume,
            "" if one.used_bytes is None else byte_size(one.used_bytes),
            "" if one.free_bytes is None else byte_size(one.free_bytes),
            "" if one.added_s is None else moment(one.added_s),
            one.why_not,
        )
        for one in found
    ]
    print_table(("volume", "used", "free", "first block", "does not answer"), rows, empty="no volume")
