"""`lockgate volumes`: the volumes of appendable files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    moment,
    print_json,
    print_json_list,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal
    from lockgate.storage_core.settings import Settings

WRONG_REPLICAS: Final = 16
"""Exit code of `fsck`, `check` and `repair`; documented in `docs/reference/command-line.md`."""

commands = typer.Typer(help="Volumes of appendable files.", no_args_is_help=True)

Bandwidth = Annotated[
    float | None,
    typer.Option("--mb-per-s", min=0.001, help="Read, or copy, at most so many megabytes a second."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only count.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Give up blocks of which no good replica is left.")
]
VolumeUrl = Annotated[
    str, typer.Argument(metavar="URL", help="file:///DIR that all machines mount, or s3://BUCKET/PREFIX.")
]
Checked = Annotated[str, typer.Argument(metavar="[PATH]", help="File or directory; default: all replicas.")]


@commands.command("list")
def list_volumes(*, json: JsonFlag = False) -> None:
    """List the volumes that the journal or this machine knows, with their space."""
    from lockgate.storage_core.files.home_files import open_journal_files

    with open_journal_files() as files:
        found = files.upkeep.statuses()
    if json:
        print_json_list((msgspec.structs.asdict(one) for one in found), name="volumes")
        return

    def size(value: int | None) -> str:
        return "" if value is None else byte_size(value)

    rows = []
    for one in found:
        added = "" if one.added_s is None else moment(one.added_s)
        sizes = size(one.used_bytes), size(one.free_bytes)
        rows.append((one.volume, one.url, one.state, *sizes, added, one.why_not))
    columns = ("volume", "url", "state", "used", "free", "registered", "does not answer")
    print_table(columns, rows, empty="no volume")


@commands.command("add")
def add(url: VolumeUrl) -> None:
    """Make a volume, if there is none at the URL, and register it: new blocks then go to it too."""
    from lockgate.storage_core.files.home_files import open_journal_files

    settings = load_settings()
    with open_journal_files(settings) as files:
        print_line(register_volume(url, settings, files.journal_of("/")))


def register_volume(url: str, settings: Settings, journal: Journal) -> str:
    """Make a volume at a URL, if there is none, register it in a journal, and return its id."""
    from lockgate.storage_core.files.namespace.volume_urls import register_url
    from lockgate.storage_core.files.volumes.volume_map import open_volume
    from lockgate.storage_core.stores.open_store import parse_destination

    destination = parse_destination(url)
    volume = open_volume(destination, settings)
    volume.claim(journal.identity)
    register_url(journal, volume.id, destination)
    return volume.id


@commands.command("check")
def check(
    path: Checked = "",
    *,
    virtual: Annotated[
        int | None,
        typer.Option(
            "--virtual-volumes",
            min=1,
            max=1_000,
            help="Compare each volume in so many slices; default: LOCKGATE_REPORT_VIRTUAL_VOLUMES.",
        ),
    ] = None,
    limit: Bandwidth = None,
    json: JsonFlag = False,
) -> None:
    """Compare the replicas with the journal, and read their bytes. It changes nothing.

    `lockgate volumes repair` repairs what is found. A check that was stopped goes on where it was, and leaves
    out the virtual volumes in which it has found nothing. Exits with 16 if a replica is wrong or a volume
    does not answer; one that is left over is not wrong.
    """
    show_check(path, verify=True, limit=limit, json=json, virtual_volumes=virtual)


def show_check(
    path: str, *, verify: bool, limit: float | None, json: bool, virtual_volumes: int | None = None
) -> None:
    """Check replicas, print what is wrong, and exit with 16 if something is; see `ReplicaUpkeep.check`."""
    from lockgate.storage_core.files.home_files import open_journal_files

    with open_journal_files() as files, progress_bar() as progress:
        done = files.upkeep.check(
            path,
            verify=verify,
            virtual_volumes=virtual_volumes or load_settings().report_virtual_volumes,
            bytes_per_s=_bytes(limit),
            progress=progress,
        )
        found = list(done.findings())
    if json:
        findings = [msgspec.to_builtins(one) for one in found]
        print_json({"replicas": done.replicas, "read_bytes": done.read_bytes, "findings": findings})
    else:
        rows = [(one.problem, one.volume, one.block or "", one.path, one.detail) for one in found]
        print_table(("problem", "volume", "block", "file", "detail"), rows, empty="no replica is wrong")
        print_line(f"{counted(done.replicas, 'replica')} compared, {byte_size(done.read_bytes)} read")
    if any(one.problem != "left over" for one in found):
        raise typer.Exit(WRONG_REPLICAS)


@commands.command("repair")
def repair(
    *,
    dry_run: DryRun = False,
    accept_loss: AcceptLoss = False,
    limit: Bandwidth = None,
    json: JsonFlag = False,
) -> None:
    """Take damaged replicas out of use, copy their blocks, and delete replicas that are left over.

    Bytes are read only where the last check has found damage. Copies go to volumes with a URL; a block that
    is being written is not copied. Replicas that no block names are judged twice, LOCKGATE_LEASE_HARD_S
    apart, and kept if a block may need them. Exits with 16 if something could not be repaired.
    """
    from lockgate.storage_core.files.home_files import open_journal_files

    with open_journal_files() as files, progress_bar() as progress:
        done = files.upkeep.repair(
            dry_run=dry_run, accept_loss=accept_loss, bytes_per_s=_bytes(limit), progress=progress
        )
    if json:
        print_json({"dry_run": dry_run, **msgspec.to_builtins(done)})
    else:
        print_table(("not repaired",), [(one,) for one in done.problems], empty="")
        print_line(
            f"{counted(done.replicas, 'replica')} compared: {done.marked} taken out of use, "
            f"{done.released} good again; {done.copied} {'to copy' if dry_run else 'copied'}"
        )
        print_line(f"{done.left_over} left over: {'a dry run' if dry_run else f'{done.deleted} deleted'}")
    if done.problems:
        raise typer.Exit(WRONG_REPLICAS)


@commands.command("remove")
def remove(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Id of the volume.")],
    *,
    lost: Annotated[
        bool, typer.Option("--lost", help="It will not return: its blocks do without it.")
    ] = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Take a volume out of use: `lockgate volumes repair` copies its blocks to the others, and removes it.

    With --lost nothing is copied from it; it is refused if it has the only replica of a block.
    """
    from lockgate.storage_core.files.home_files import open_journal_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_journal_files() as files:
        files.upkeep.remove(VolumeId(volume), is_lost=lost, accept_loss=accept_loss)
    print_line(
        f"volume {volume} gets no new blocks; `lockgate volumes repair`, or the DAG volume_upkeep, "
        "removes it once no block is on it"
    )


def _bytes(mb_per_s: float | None) -> float | None:
    return None if mb_per_s is None else mb_per_s * 1e6
