"""Tables for task logs: bounded in width and length, plain text without colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any, Final

from lockgate.storage_core.printable import printable

WIDTH: Final = 140
"""Greatest width of a table; longer texts continue on the next line of their column."""
MOST_ROWS: Final = 50
LONGEST_CELL: Final = 500


def log_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, most_rows: int = MOST_ROWS) -> str:
    """Return a table as text, without escape sequences also where Airflow colours its log.

    Args:
        columns: The heading of each column.
        rows: Cells of each row; None is shown as `-`.
        most_rows: Further rows are only counted.
    """
    from rich import box  # noqa: PLC0415 - when a task runs
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for row in rows[:most_rows]:
        table.add_row(*(Text(_cell(value), overflow="fold") for value in row))
    text = StringIO()
    Console(file=text, width=WIDTH, color_system=None, force_terminal=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    if len(rows) > most_rows:
        lines.append(f"… and {len(rows) - most_rows} more")
    return "\n".join(lines)


def receipt_table(destination: str, receipt: Mapping[str, Any]) -> str:
    """Return a receipt as a table for the log of the task that committed."""
    published = datetime.fromtimestamp(receipt["published_s"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return log_table(
        ("receipt", ""),
        [
            ("destination", destination),
            ("job", receipt["job_id"]),
            ("turn", receipt["turn"]),
            ("mode", f"{receipt['mode']}, committer {receipt['committer']}"),
            ("files", f"{receipt['files']:,} visible, {receipt['removed_files']:,} removed"),
            ("rows", "not known" if receipt["rows"] is None else f"{receipt['rows']:,}"),
            ("bytes", f"{receipt['size']:,}"),
            ("published", published),
        ],
    )


def _cell(value: object) -> str:
    text = "-" if value is None else printable(str(value))
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
