"""`lockgate uploads`: list, abort and count the open uploads of a destination."""

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
    from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport
    from lockgate.storage_core.commit.uploads.upload_cost import UploadTotals
    from lockgate.storage_core.commit.uploads.upload_owner import UploadFilter

commands = typer.Typer(
    help="List open uploads, and abort orphans.",
    no_args_is_help=True,
)

_AGE: Final = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd])")
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

Prefix = Annotated[
    str, typer.Option(metavar="FOLDER", help="Only below this folder; day=1 does not match day=10.")
]
OlderThan = Annotated[str, typer.Option(metavar="AGE", help="Only of at least this age: 90m, 36h, 7d.")]
Owner = Annotated[
    str, typer.Option(metavar="JOB", help="Only of this job (id or name); none: without a known owner.")
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
    """List open uploads with owner, size, cost, and what a sweep would do."""
    upload_filter = _filter(destination, prefix, older_than, owner)
    _show(destination, _sweep(destination, upload_filter, dry_run=True), json=json)


@commands.command("abort")
def abort(
    destination: Destination,
    *,
    prefix: Prefix = "",
    older_than: OlderThan = "",
    owner: Owner = "",
    yes: Annotated[bool, typer.Option("--yes", help="Abort them; otherwise only list them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Abort orphans; without --yes only list them.

    An upload is an orphan if its job has ended, or if two sweeps far apart found no owner. Uploads that a job
    may still need are always kept; exits with 8 if --owner selects such uploads.
    """
    from lockgate.storage_core.commit.uploads.upload_owner import SweepAction

    report = _sweep(destination, _filter(destination, prefix, older_than, owner), dry_run=not yes)
    _show(destination, report, json=json)
    if not yes and not json:
        print_line("a dry run: nothing was aborted; add --yes")
    if yes and owner and SweepAction.KEEP in report.by_action:
        raise typer.Exit(ConflictError.exit_code)


@commands.command(
    "expect", context_settings={"ignore_unknown_options": True}
)  # -1 is a number, not an option
def expect(
    destination: Destination,
    count: Annotated[int, typer.Argument(metavar="N", help="Expected number of open uploads.")],
    *,
    prefix: Prefix = "",
    older_than: OlderThan = "",
    owner: Owner = "",
    json: JsonFlag = False,
) -> None:
    """Exit with 8 unless exactly N uploads are open: for tests and monitoring."""
    from lockgate.storage_core.commit.uploads.upload_owner import count_uploads

    if count < 0:
        raise InvalidInputError(f"uploads expect: N is {count}; give a number of open uploads, 0 or more")
    upload_filter = _filter(destination, prefix, older_than, owner)
    with progress_bar() as progress:
        found = count_uploads(destination, upload_filter, progress=progress)
    if json:
        print_json({"destination": destination, "expected": count, "open": found})
    else:
        print_line(f"{found} open uploads at {destination}, {count} expected")
    if found != count:
        raise typer.Exit(ConflictError.exit_code)


def _filter(destination: str, prefix: str, older_than: str, owner: str) -> UploadFilter:
    from lockgate.storage_core.commit.job_view import find_job
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused
    from lockgate.storage_core.commit.uploads.upload_owner import NO_OWNER, UploadFilter

    older_than_s = _age_s(older_than) if older_than else 0.0
    refuse_unused(destination)
    return UploadFilter(
        prefix=prefix,
        older_than_s=older_than_s,
        owner=None if not owner else "none" if owner == NO_OWNER else find_job(destination, owner),
    )


def _age_s(text: str) -> float:
    age = _AGE.fullmatch(text)
    if age is None:
        raise InvalidInputError(
            f"--older-than {text!r} is not an age; give a number followed by s, m, h or d, such as 36h; "
            "nothing was done"
        )
    return float(age["count"]) * _UNIT_S[age["unit"]]


def _sweep(destination: str, upload_filter: UploadFilter, *, dry_run: bool) -> SweepReport:
    from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
    from lockgate.storage_core.commit.uploads.upload_owner import SweepAction

    with progress_bar() as progress:
        return sweep_uploads(
            destination,
            wanted=upload_filter,
            dry_run=dry_run,
            measure=frozenset(SweepAction),
            progress=progress,
        )


def _show(destination: str, report: SweepReport, *, json: bool) -> None:
    if json:
        print_json(report)
        return
    print_table(
        ("upload of", "begun (UTC)", "size", "owner", "action", "why"),
        [
            (
                upload.key,
                moment(upload.begun_s),
                None if upload.size is None else byte_size(upload.size),
                upload.owner,
                upload.action,
                upload.reason,
            )
            for upload in report.uploads
        ],
        empty=f"no open upload at {destination}",
    )
    if report.uploads:
        print_line("")
        totals = [*report.by_action.items(), ("all", report.total)]
        print_table(
            ("action", "uploads", "size", "USD a month"),
            [(name, sums.uploads, _size(sums), f"{sums.monthly_cost_usd:.2f}") for name, sums in totals],
            empty="",
        )
        print_line("")
    remedies = (f"{upload.reason}; {upload.remedy}" for upload in report.uploads if upload.remedy)
    for remedy in dict.fromkeys(remedies):
        print_line(remedy)
    for line in report.lines():
        print_line(line)


def _size(sums: UploadTotals) -> str:
    unknown = f" and {sums.unmeasured} of unknown size" if sums.unmeasured else ""
    return f"{byte_size(sums.size)}{unknown}"
