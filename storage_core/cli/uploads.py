"""`lockgate uploads`: the pending uploads at a destination, who owns them, and what they cost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockgate.storage_core.cli.render import (
    Destination,
    JsonFlag,
    byte_size,
    moment,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from lockgate.storage_core.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from lockgate.storage_core.commit import SweepReport, UploadFilter, UploadTotals

commands = typer.Typer(
    help="Look at open uploads, and abort the orphans.",
    no_args_is_help=True,
)

_AGE: Final = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd])")
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

Prefix = Annotated[
    str, typer.Option(metavar="FOLDER", help="Only below this folder; day=1 never means day=10.")
]
OlderThan = Annotated[str, typer.Option(metavar="AGE", help="Only those begun so long ago: 90m, 36h, 7d.")]
Owner = Annotated[
    str, typer.Option(metavar="JOB", help="Only this job's (its id, or its name); none: what no job owns.")
]


@commands.command("list")
def list_all(
    destination: Destination,
    *,
    prefix: Prefix = "",
    older_than: OlderThan = "",
    owner: Owner = "",
    json: JsonFlag = False,
) -> None:
    """List open uploads: whose each is, its bytes, what becomes of it."""
    wanted = _wanted(destination, prefix, older_than, owner)
    _show(destination, _sweep(destination, wanted, dry_run=True), json=json)


@commands.command("abort")
def abort(
    destination: Destination,
    *,
    prefix: Prefix = "",
    older_than: OlderThan = "",
    owner: Owner = "",
    yes: Annotated[bool, typer.Option("--yes", help="Abort them; without it, only say which.")] = False,
    json: JsonFlag = False,
) -> None:
    """Abort the orphans; without --yes only says which.

    An upload is an orphan when its job has ended, or when two sweeps far apart saw no owner of it. What a
    job may still need is kept, whatever is asked for; exits with 8 where that is what --owner named.
    """
    from lockgate.storage_core.commit import SweepAction  # noqa: PLC0415 - slow to import, see `lockgate.storage_core.cli`

    report = _sweep(destination, _wanted(destination, prefix, older_than, owner), dry_run=not yes)
    _show(destination, report, json=json)
    if not yes and not json:
        print_line("a dry run: nothing was aborted; add --yes")
    if yes and owner and SweepAction.KEEP in report.by_action:
        raise typer.Exit(ConflictError.exit_code)


@commands.command("expect")
def expect(
    destination: Destination,
    count: Annotated[int, typer.Argument(metavar="N", min=0, help="How many uploads must be open.")],
    *,
    prefix: Prefix = "",
    older_than: OlderThan = "",
    owner: Owner = "",
    json: JsonFlag = False,
) -> None:
    """Exit with 8 unless exactly N uploads are open: for tests and monitoring."""
    from lockgate.storage_core.commit import count_uploads  # noqa: PLC0415

    wanted = _wanted(destination, prefix, older_than, owner)
    with progress_bar() as progress:
        found = count_uploads(destination, wanted, progress=progress)
    if json:
        print_json({"destination": destination, "expected": count, "open": found})
    else:
        print_line(f"{found} open uploads at {destination}, {count} expected")
    if found != count:
        raise typer.Exit(ConflictError.exit_code)


def _wanted(destination: str, prefix: str, older_than: str, owner: str) -> UploadFilter:
    from lockgate.storage_core.cli.jobs.job_view import find_job  # noqa: PLC0415
    from lockgate.storage_core.commit import UploadFilter  # noqa: PLC0415
    from lockgate.storage_core.commit.uploads.upload_owner import NO_OWNER  # noqa: PLC0415

    return UploadFilter(
        prefix=prefix,
        older_than_s=_age_s(older_than) if older_than else 0.0,
        owner=None if not owner else "none" if owner == NO_OWNER else find_job(destination, owner),
    )


def _age_s(text: str) -> float:
    age = _AGE.fullmatch(text)
    if age is None:
        raise InvalidInputError(
            f"--older-than {text!r} is no age; give a number with s, m, h or d behind it, such as 36h; "
            "nothing was done"
        )
    return float(age["count"]) * _UNIT_S[age["unit"]]


def _sweep(destination: str, wanted: UploadFilter, *, dry_run: bool) -> SweepReport:
    from lockgate.storage_core.commit import SweepAction, sweep_uploads  # noqa: PLC0415

    with progress_bar() as progress:
        return sweep_uploads(
            destination, wanted=wanted, dry_run=dry_run, measure=frozenset(SweepAction), progress=progress
        )


def _show(destination: str, report: SweepReport, *, json: bool) -> None:
    if json:
        print_json(report)
        return
    print_table(
        ("upload of", "begun (UTC)", "size", "owner", "action", "why"),
        [
            (
                fate.key,
                moment(fate.begun_s),
                None if fate.size is None else byte_size(fate.size),
                fate.owner,
                fate.action,
                fate.reason,
            )
            for fate in report.uploads
        ],
        empty=f"no open upload at {destination}",
    )
    if report.uploads:
        print_line("")
        figures = [*report.by_action.items(), ("all", report.total)]
        print_table(
            ("action", "uploads", "size", "USD a month"),
            [(name, those.uploads, _size(those), f"{those.monthly_cost_usd:.2f}") for name, those in figures],
            empty="",
        )
        print_line("")
    for why in dict.fromkeys(f"{fate.reason}; {fate.remedy}" for fate in report.uploads if fate.remedy):
        print_line(why)
    for job in report.jobs:
        print_line(f"{job.job_id}: {job.action}")


def _size(figures: UploadTotals) -> str:
    unknown = f" and {figures.unmeasured} of unknown size" if figures.unmeasured else ""
    return f"{byte_size(figures.size)}{unknown}"
