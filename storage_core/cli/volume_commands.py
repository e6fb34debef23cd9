"""`lockgate volumes`: the volumes of appendable files."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from lockgate.storage_core.cli import volume_upkeep_commands
from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    moment,
    print_json,
    print_json_list,
    print_line,
    print_table,
)
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_settings

commands = typer.Typer(help="Volumes of appendable files.", no_args_is_help=True)


@commands.command("list")
def list_volumes(*, json: JsonFlag = False) -> None:
    """List the volumes that the journal or this machine knows, with their space."""
    from lockgate.storage_core.files.home_files import open_files

    with open_files() as files:
        found = files.upkeep.statuses()
    if json:
        print_json_list((msgspec.structs.asdict(one) for one in found), name="volumes")
        return
    rows = [
        (
            one.volume,
            one.url,
            "" if one.used_bytes is None else byte_size(one.used_bytes),
            "" if one.free_bytes is None else byte_size(one.free_bytes),
            "" if one.added_s is None else moment(one.added_s),
            "" if one.lost_s is None else moment(one.lost_s),
            one.why_not,
        )
        for one in found
    ]
    columns = ("volume", "url", "used", "free", "registered", "lost", "does not answer")
    print_table(columns, rows, empty="no volume")


@commands.command("add")
def add(url: Annotated[str, typer.Argument(metavar="s3://BUCKET/PREFIX")]) -> None:
    """Make a volume in a bucket, if there is none, and register it: new blocks then go to it too."""
    from lockgate.storage_core.files.namespace.volume_urls import register_urls
    from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
    from lockgate.storage_core.journal.process_journal import configured_journal
    from lockgate.storage_core.stores import open_store
    from lockgate.storage_core.stores.open_store import parse_destination

    if not url.startswith("s3://"):
        raise InvalidInputError(
            f"volume {url!r}: write s3://bucket/prefix; a volume server registers its directories itself"
        )
    settings = load_settings()
    journal = configured_journal(settings, None)
    if journal is None:
        raise InvalidInputError("appendable files are kept in a journal; set LOCKGATE_JOURNAL_URL to one")
    destination = parse_destination(url)
    volume = S3Volume(open_store(destination, settings))
    volume.claim(journal.identity)
    register_urls(journal, {volume.id: destination})
    print_line(volume.id)


@commands.command("report")
def report(*, json: JsonFlag = False) -> None:
    """Report the replicas of the volumes to the journal, and show each volume's last report.

    A member's replica that is lost, stale or corrupt is marked, and no longer read. Nothing is deleted.
    """
    from lockgate.storage_core.files.home_files import open_files

    with open_files() as files:
        found = files.upkeep.report()
        reporting = files.upkeep.reporting()
    if json:
        print_json_list((msgspec.structs.asdict(one) for one in found), name="volumes")
        return
    rows = [
        (
            one.volume,
            one.replicas,
            byte_size(one.length_bytes),
            "" if one.reported_s is None else moment(one.reported_s),
            one.differences,
            one.only_ones,
            one.why_not,
        )
        for one in found
    ]
    columns = ("volume", "replicas", "bytes", "last report", "marked", "only ones", "does not answer")
    print_table(columns, rows, empty="no volume")
    if missing := reporting.unreported + reporting.only_ones:
        print_line(
            f"{missing} of {counted(reporting.blocks, 'block')} without a replica that has reported: "
            "deletions and copies may wait for them"
        )


@commands.command("lost")
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
    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files() as files:
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


@commands.command("found")
def declare_found(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Volume that was declared lost.")],
) -> None:
    """Use a volume again that was declared lost, and report: its good replicas are served again."""
    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files() as files:
        files.upkeep.declare_found(VolumeId(volume))
        taken = files.upkeep.take_back(VolumeId(volume))
        files.upkeep.report()
    if taken:
        print_line(f"{counted(taken, 'block')} without another good replica: served again")
    print_line(f"{volume}: in use again")


@commands.command("forget")
def forget(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Volume that is a member of no block.")],
) -> None:
    """Remove a volume from the journal; one that is a member of blocks is refused."""
    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files() as files:
        files.upkeep.forget(VolumeId(volume))
    print_line(f"{volume}: removed from the journal")


commands.command("verify")(volume_upkeep_commands.verify)
commands.command("repair")(volume_upkeep_commands.repair)
commands.command("rebalance")(volume_upkeep_commands.rebalance)
commands.command("clean")(volume_upkeep_commands.clean)
commands.command("leave-safe-mode")(volume_upkeep_commands.leave_safe_mode)
