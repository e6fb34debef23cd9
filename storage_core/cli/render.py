"""Output of the commands (tables, JSON documents, errors, progress bars), and the options that they share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import msgspec
import typer

from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.printable import printable

if TYPE_CHECKING:
    from lockgate.storage_core.concurrency import Progress

JSON_FLAG: Final = "lockgate.json"
WIDE: Final = 240
"""Width of a table if the output is not a terminal, so that `grep` finds complete names."""


def _store_json_flag(context: typer.Context, value: bool) -> bool:
    context.meta[JSON_FLAG] = value
    return value


JsonFlag = Annotated[
    bool,
    typer.Option("--json", callback=_store_json_flag, help="Print one JSON document instead of a table."),
]
DESTINATION_HELP: Final = "Destination of jobs: s3://bucket/prefix, file:///dir, or a path."
JOB_HELP: Final = (
    "A job id such as sales-2026-11-21-g1, or a job's name for its newest generation. Without DEST, the "
    "journal determines the destination."
)
Destination = Annotated[str, typer.Argument(metavar="DEST", help=DESTINATION_HELP)]
AtLeast = Annotated[
    str, typer.Option(metavar="STAMP", help="Read a state with at least this stamp (3.512) or token.")
]


@contextmanager
def standard_output() -> Iterator[None]:
    """End the process with exit code 1 if standard output fails; silently if its reader has ended."""
    try:
        yield
    except OSError as error:
        sys.stdout = open_null()  # what is buffered would fail once more at the end of the process
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(
                f"error: standard output: {error.strerror}; the output is incomplete, and what the command "
                "changed stays; free space, or send the output elsewhere\n"
            )
        sys.exit(1)


def open_null() -> TextIO:
    """Return a stream that drops what is written to it."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _write(text: str) -> None:
    with standard_output():
        sys.stdout.write(text)


def print_json(document: Any) -> None:
    """Print records, or lists and dicts of them, as one document to standard output."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    _write(f"{text}\n")


def print_json_list(items: Iterable[Any], head: Mapping[str, Any] | None = None, name: str = "") -> None:
    """Print records as one JSON array while they are read, so that any number needs little memory.

    If reading fails later than at the first record, the output ends in the middle, and the exit code tells.

    Args:
        items: The records.
        head: Fields before the array, which is then the last field of one object.
        name: Name of the array in that object.
    """
    records = iter(items)
    record = next(records, None)  # first, so that an early error is the only document
    start = "["
    if head is not None:
        fields = msgspec.json.format(msgspec.json.encode(head), indent=2).decode()
        start = f'{fields.rstrip("}").rstrip()},\n  "{name}": ['
    inner, close = ("    ", "  ]\n}") if head is not None else ("  ", "]")
    _write(start)
    separator = "\n"
    while record is not None:
        text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
        _write(f"{separator}{indent(text, inner)}")
        separator, record = ",\n", next(records, None)
    _write(f"{close.lstrip()}\n" if separator == "\n" else f"\n{close}\n")


def print_line(text: str) -> None:
    """Print one line of text."""
    _write(f"{printable(text)}\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows under their columns, or the line `empty` if there are none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print_line(empty)
        return
    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        # Text, so that a name such as `[red]` is not interpreted as markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    with standard_output():
        Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE).print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print each name and its value on a line; omit names without a value."""
    shown = [(name, _cell(value)) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(f"{name:<{width}}  {value}")


def print_error(error: Exception, *, as_json: bool) -> None:
    """Report an error as a line on standard error, or as the JSON document on standard output."""
    kind = type(error).__name__
    message = printable(" ".join(str(error).split()))
    if not isinstance(error, LockgateError):
        message = f"unexpected {kind}: {message}; set LOCKGATE_DEBUG=1 to see where"
    if as_json:
        print_json({"error": {"type": kind, "message": message, "exit_code": exit_code(error)}})
    else:
        sys.stderr.write(f"error: {message}\n")


def exit_code(error: Exception) -> int:
    """Return the exit code for an error; `docs/reference/command-line.md` lists them."""
    return error.exit_code if isinstance(error, LockgateError) else 1


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show the progress of steps on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _step, _done, _total: None
        return
    from rich import progress
    from rich.console import Console

    bars = progress.Progress(console=Console(stderr=True), transient=True)
    tasks: dict[str, Any] = {}

    def report(step: str, done: int, total: int) -> None:
        if step not in tasks:
            tasks[step] = bars.add_task(step, total=total or None)
        # Without a total the bar shows no progress, so the description contains the number.
        description = step if total else f"{step}: {done}"
        bars.update(tasks[step], completed=done, total=total or None, description=description)

    with bars:
        yield report


def moment(seconds: float) -> str:
    """Format seconds since the epoch as UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def age(seconds: float) -> str:
    """Format an age with a unit: `3 h`."""
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def byte_size(size: int) -> str:
    """Format a number of bytes with a unit: `1.5 MiB`."""
    amount, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    for larger in units:
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def byte_count(text: str) -> int:
    """Return the bytes of a size with a unit: `256MiB`, `64 KiB` or `1048576`.

    Raises:
        InvalidInputError: It is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:iB)?|B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InvalidInputError(f"{text!r} is not a size; give one such as 256MiB; nothing was done")
    return int(float(match[1]) * 1024 ** (" KMGT".index((match[2] or " ").upper())))


def counted(number: int, noun: str) -> str:
    """Format a number of things: `1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))
