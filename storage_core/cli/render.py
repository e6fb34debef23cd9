"""What the commands show: tables for people, one JSON document for programs, progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.printable import printable

if TYPE_CHECKING:
    from lockgate.storage_core.concurrency import Progress

JSON_FLAG: Final = "lockgate.json"
WIDE: Final = 240
"""Columns of a table that is not read on a terminal, so that `grep` finds whole names."""


def _remember(context: typer.Context, value: bool) -> bool:
    """Let the error report know that a JSON document was asked for."""
    context.meta[JSON_FLAG] = value
    return value


JsonFlag = Annotated[
    bool, typer.Option("--json", callback=_remember, help="Print one JSON document instead of a table.")
]
DESTINATION_HELP: Final = "What jobs write: s3://bucket/prefix, file:///dir, or a path."
Destination = Annotated[str, typer.Argument(metavar="DEST", help=DESTINATION_HELP)]


def print_json(document: Any) -> None:
    """Print records, or lists and dicts of them, as the one document on standard output."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    sys.stdout.write(f"{text}\n")


def print_line(text: str) -> None:
    """Print one line for people."""
    sys.stdout.write(f"{printable(text)}\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows under their columns, or the line `empty` where there are none."""
    from rich import box  # noqa: PLC0415 - rich takes a tenth of a second, which `--json` need not wait
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not rows:
        print_line(empty)
        return
    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        # Text, so that a name such as `[red]` is shown, not obeyed.
        table.add_row(*(Text(_cell(value)) for value in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE).print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one a line; those without a value are left out."""
    shown = [(name, _cell(value)) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(f"{name:<{width}}  {value}")


def print_error(error: Exception, *, as_json: bool) -> None:
    """Report why a command failed: a line on standard error, or the JSON document on standard output."""
    kind = type(error).__name__
    message = printable(" ".join(str(error).split()))
    if not isinstance(error, LockgateError):
        message = f"unexpected {kind}: {message}; set LOCKGATE_DEBUG=1 to see where"
    if as_json:
        print_json({"error": {"type": kind, "message": message, "exit_code": exit_code(error)}})
    else:
        sys.stderr.write(f"error: {message}\n")


def exit_code(error: Exception) -> int:
    """Return what the command exits with; `docs/command-line.md` lists them."""
    return error.exit_code if isinstance(error, LockgateError) else 1


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show how far the steps are, on standard error while that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _step, _done, _total: None
        return
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415 - as in print_table

    bars = progress.Progress(console=Console(stderr=True), transient=True)
    begun: dict[str, Any] = {}

    def report(step: str, done: int, total: int) -> None:
        if step not in begun:
            begun[step] = bars.add_task(step, total=total or None)
        # A step whose end nobody knows shows how far it is in words, beside a bar that only moves.
        said = step if total else f"{step}: {done}"
        bars.update(begun[step], completed=done, total=total or None, description=said)

    with bars:
        yield report


def moment(seconds: float) -> str:
    """Show seconds since the epoch as UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def age(seconds: float) -> str:
    """Show how long ago: `3 h`."""
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def byte_size(size: int) -> str:
    """Show bytes with a unit: `1.5 MiB`."""
    amount, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    for larger in units:
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))
