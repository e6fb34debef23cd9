"""`lockgate volumes verify`, `repair`, `rebalance`, `clean` and `leave-safe-mode`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from lockgate.storage_core.cli.render import (
    JsonFlag,
    byte_size,
    counted,
    print_json,
    print_json_list,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.errors import StoreUnavailableError

WRONG_REPLICAS: Final = 16
"""Exit code of `fsck` and `verify`; documented in `docs/reference/command-line.md`."""


def verify(
    volumes: Annotated[
        list[str] | None, typer.Argument(metavar="[VOLUME]…", help="Volumes; default: all.")
    ] = None,
    *,
    limit: Annotated[
        float | None, typer.Option("--mb-per-s", min=0.001, help="Read at most so many megabytes a second.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Read the replicas of volumes, and quarantine those whose checksums do not hold.

    A replica in quarantine is kept and no longer read; `lockgate volumes repair` copies its block. Nothing is
    deleted. A verification that was stopped goes on where it was. Exits with 16 if a replica is wrong or a
    volume does not answer. `lockgate files fsck --verify` changes nothing.
    """
    from lockgate.storage_core.files.home_files import open_files
    from lockgate.storage_core.files.volumes.protocol import VolumeId

    with open_files() as files, progress_bar() as progress:
        bytes_per_s = None if limit is None else limit * 1e6
        only = [VolumeId(volume) for volume in volumes or ()]
        found = list(files.upkeep.verify(only, bytes_per_s=bytes_per_s, progress=progress))
    if json:
        print_json_list((msgspec.to_builtins(one) for one in found), name="volumes")
    else:
        rows = [
            (
                one.volume,
                one.replicas,
                byte_size(one.read_bytes),
                one.quarantined,
                one.released,
                one.only_ones,
                one.why_not,
            )
            for one in found
        ]
        columns = ("volume", "replicas", "read", "quarantined", "good again", "only ones", "does not answer")
        print_table(columns, rows, empty="no volume")
        wrong = [
            (it.problem, it.volume, it.block, it.path, it.detail) for one in found for it in one.findings
        ]
        print_table(("problem", "volume", "block", "file", "detail"), wrong, empty="no replica is wrong")
    if any(one.findings or one.why_not for one in found):
        raise typer.Exit(WRONG_REPLICAS)


def repair(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Copy them; otherwise only count them.")] = False,
    limit: Annotated[
        float | None, typer.Option("--mb-per-s", min=0.001, help="Copy at most so many megabytes a second.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Report the replicas, then copy the blocks that have too few good ones; without --yes only count them.

    Copies go to volumes with a URL. A block that is being written is not copied.
    """
    from lockgate.storage_core.files.home_files import open_files

    with open_files() as files:
        if yes:
            files.upkeep.drop_lost()
            files.upkeep.report()
        found = list(
            files.upkeep.re_replicate(dry_run=not yes, bytes_per_s=None if limit is None else limit * 1e6)
        )
    left = [one for one in found if one.why_not]
    if json:
        copies = [msgspec.structs.asdict(one) for one in found]
        print_json({"dry_run": not yes, "blocks": copies})
    elif yes:
        print_table(("block", "why not copied"), [(one.block, one.why_not) for one in left], empty="")
        print_line(f"copies made: {len(found) - len(left)}, blocks not copied: {len(left)}")
    else:
        print_line(f"{counted(len(found), 'block')} with too few good replicas: a dry run; add --yes")
    if yes and left:
        raise typer.Exit(StoreUnavailableError.exit_code)


def rebalance(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Move them; otherwise only show the moves.")] = False,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold",
            min=0.1,
            max=99,
            help="Percent of the space that a volume may differ from the mean.",
        ),
    ] = 10.0,
    limit: Annotated[
        float | None, typer.Option("--mb-per-s", min=0.001, help="Copy at most so many megabytes a second.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Move blocks between volumes with a URL until each uses about the same share of its space.

    Without --yes only shows the moves. The old replicas are deleted at the end, LOCKGATE_LEASE_HARD_S after
    the last move. A block that is being written is not moved. Volumes without a limit (buckets) take no part.
    """
    from lockgate.storage_core.files.home_files import open_files

    with open_files() as files, progress_bar() as progress:
        bytes_per_s = None if limit is None else limit * 1e6
        found = list(
            files.upkeep.rebalance(
                threshold=threshold / 100, dry_run=not yes, bytes_per_s=bytes_per_s, progress=progress
            )
        )
    if json:
        print_json({"dry_run": not yes, "moves": [msgspec.structs.asdict(one) for one in found]})
        return
    rows = [(one.block, byte_size(one.length_bytes), one.source, one.target, one.why_not) for one in found]
    print_table(("block", "bytes", "from", "to", "why not moved"), rows, empty="no block is to be moved")
    if found and not yes:
        print_line("a dry run; add --yes")


def clean(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; otherwise only count them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Delete replicas that no block names any more, and those in quarantine; without --yes only count them.

    They are judged twice, LOCKGATE_LEASE_HARD_S apart. Replicas that a block may need are kept.
    """
    from lockgate.storage_core.files.home_files import open_files

    with open_files() as files:
        done = files.upkeep.delete_left_over(dry_run=not yes)
    if json:
        print_json({"dry_run": not yes, **msgspec.structs.asdict(done)})
    elif yes:
        print_line(f"{counted(done.found, 'replica')} left over: {done.deleted} deleted, {done.kept} kept")
    else:
        print_line(f"{counted(done.found, 'replica')} left over: a dry run; add --yes")
    if done.set_aside and not json:
        print_line(f"{counted(done.set_aside, 'replica')} in quarantine: {done.discarded} deleted")


def leave_safe_mode(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Accept them; otherwise only count them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Accept the blocks without any good replica as lost: deletions and copies no longer wait for them.

    Their replicas are kept, and are used again if they return. A volume that has not reported is waited for.
    """
    from lockgate.storage_core.files.home_files import open_files

    with open_files() as files:
        missing = files.upkeep.accept_missing() if yes else files.upkeep.reporting().only_ones
    if json:
        print_json({"dry_run": not yes, "blocks": missing})
    else:
        print_line(
            f"{counted(missing, 'block')} without a good replica: "
            + ("accepted as lost" if yes else "a dry run; add --yes")
        )
