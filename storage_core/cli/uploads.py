"""`lockgate uploads`: the pending uploads at a destination, and who owns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from storage_core.cli.render import Destination, JsonFlag, moment, print_json, print_line, print_table

if TYPE_CHECKING:
    from storage_core.commit import SweepReport

commands = typer.Typer(
    help="Look at open uploads, and abort the orphans.",
    no_args_is_help=True,
)


@commands.command("list")
def list_all(destination: Destination, json: JsonFlag = False) -> None:
    """List open uploads: whose each is, what becomes of it."""
    from storage_core.commit import sweep_uploads  # noqa: PLC0415 - slow to import, see `storage_core.cli`

    _show(destination, sweep_uploads(destination, dry_run=True), json=json)


@commands.command("abort")
def abort(
    destination: Destination,
    yes: Annotated[bool, typer.Option("--yes", help="Abort them; without it, only say which.")] = False,
    json: JsonFlag = False,
) -> None:
    """Abort the orphans; without --yes only says which.

    An upload is an orphan when its job has ended, or when two sweeps far apart saw no owner of it.
    """
    from storage_core.commit import sweep_uploads  # noqa: PLC0415

    _show(destination, sweep_uploads(destination, dry_run=not yes), json=json)
    if not yes and not json:
        print_line("a dry run: nothing was aborted; add --yes")


def _show(destination: str, report: SweepReport, *, json: bool) -> None:
    if json:
        print_json(report)
        return
    print_table(
        ("upload of", "begun (UTC)", "owner", "action", "why"),
        [(fate.key, moment(fate.begun_s), fate.owner, fate.action, fate.reason) for fate in report.uploads],
        empty=f"no open upload at {destination}",
    )
    for job in report.jobs:
        print_line(f"{job.job_id}: {job.action}")
