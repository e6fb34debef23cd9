"""`lockgate volumes lost`, `found` and `forget`: volumes that leave."""

from __future__ import annotations

from typing import Annotated

import typer

from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    print_json,
    print_line,
    print_table,
)


def declare_lost(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Volume that will not return.")],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Declare it lost; otherwise only show what it has.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Declare a volume lost for good: no block names it any more, and nothing waits for it.

    Shows the blocks of which no good replica is left, with their files. `lockgate volumes repair --yes`
    copies the others. If the volume comes back, it is not served, and `lockgate volumes clean` deletes its
    replicas.
    """
    import msgspec

    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files(writes=False) as files:
        done = files.upkeep.declare_lost(VolumeId(volume), dry_run=not yes)
    if json:
        print_json({"dry_run": not yes, **msgspec.to_builtins(done)})
        return
    rows = [(one.block, byte_size(one.length_bytes), one.path) for one in done.without]
    print_table(("block without a good replica", "bytes", "file"), rows, empty="")
    print_line(
        f"{counted(done.members, 'block')} with other good replicas, {len(done.without)} without, "
        f"{done.unsealed} being written"
        + ("; next: lockgate volumes repair --yes" if yes else ": a dry run; add --yes")
    )


def declare_found(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Volume that was declared lost.")],
) -> None:
    """Use a volume again that was declared lost, and report: its good replicas are served again."""
    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files(writes=False) as files:
        files.upkeep.declare_found(VolumeId(volume))
        taken = files.upkeep.take_back(VolumeId(volume))
        files.upkeep.report()
    if taken:
        print_line(f"{counted(taken, 'block')} without another good replica: served again")
    print_line(f"{volume}: in use again")


def forget(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Volume that is a member of no block.")],
) -> None:
    """Remove a volume from the journal; one that is a member of blocks is refused."""
    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files(writes=False) as files:
        files.upkeep.forget(VolumeId(volume))
    print_line(f"{volume}: removed from the journal")
