"""Tables and progress for task logs: plain text without colours, bounded in width and length."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from lockgate.storage_core.printable import printable

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

WIDTH: Final = 140
"""Greatest width of a table; longer texts continue on the next line of their column."""
MOST_ROWS: Final = 50
LONGEST_CELL: Final = 500
EVERY_S: Final = 5.0


def log_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    most_rows: int = MOST_ROWS,
    width: int = WIDTH,
) -> str:
    """Return a table as text, without escape sequences also where Airflow colours its log.

    Args:
        columns: The heading of each column.
        rows: Cells of each row; None is shown as `-`.
        most_rows: Further rows are only counted.
        width: Greatest width; longer texts continue on the next line of their column.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for row in rows[:most_rows]:
        table.add_row(*(Text(_cell(value), overflow="fold") for value in row))
    text = StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    if len(rows) > most_rows:
        lines.append(f"… and {len(rows) - most_rows} more")
    return "\n".join(lines)


def receipt_table(destination: str, receipt: Mapping[str, Any]) -> str:
    """Return a receipt as a table for the log of the task that committed."""
    removed = f"{receipt['removed_files']:,} removed"
    if undeleted := receipt.get("undeleted_files"):
        removed += f", {undeleted:,} of them not deleted yet"
    published = datetime.fromtimestamp(receipt["published_s"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return log_table(
        ("receipt", ""),
        [
            ("destination", destination),
            ("job", receipt["job_id"]),
            ("turn", receipt["turn"]),
            ("mode", f"{receipt['mode']}, committer {receipt['committer']}"),
            ("files", f"{receipt['files']:,} visible, {removed}"),
            ("rows", "not known" if receipt["rows"] is None else f"{receipt['rows']:,}"),
            ("bytes", f"{receipt['size']:,}"),
            ("published", published),
            *([("tables", behind)] if (behind := receipt.get("tables_behind")) else []),
        ],
    )


def _cell(value: object) -> str:
    text = "-" if value is None else printable(str(value))
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


class LoggedProgress:
    """Logs a step's first and last report, and one every few seconds between; thread-safe."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._logged_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report `done` of `total`."""
        with self._lock:
            now_s = time.monotonic()
            if done < total and now_s - self._logged_s.get(step, float("-inf")) < EVERY_S:
                return
            self._logged_s[step] = now_s
        self._log.info("%s: %d of %d", step, done, total)
