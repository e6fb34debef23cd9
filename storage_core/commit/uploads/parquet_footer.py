"""Read rows and column statistics from a Parquet footer for the pending set."""

from __future__ import annotations

import logging
from decimal import Decimal
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.printable import printable

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LOG: Final = logging.getLogger("lockgate.uploads")

STATISTICS_COLUMNS: Final = 32
"""Maximum number of columns with bounds, which keeps pending sets small."""
NAMED_COLUMNS: Final = 200
"""Maximum number of columns that are recorded, most of them with their type only."""
STATISTICS_LENGTH: Final = 64
"""Maximum length of a minimum or maximum as text."""
TAIL_BYTES: Final = 1024 * 1024
"""A file's last bytes, in which its footer is looked for."""


def statistics_in_tail(tail: bytes, name: str) -> tuple[int, dict[str, ColumnStatistics]] | None:
    """Return the rows and statistics of a Parquet file from its last bytes.

    None if they hold no whole footer, or without pyarrow: statistics are never a reason to fail a write, but
    a file that looks like Parquet and cannot be read is logged.

    Args:
        tail: The file's last bytes.
        name: Name of the file, for the log.
    """
    if not tail.endswith(b"PAR1"):
        return None
    try:
        import pyarrow as pa  # noqa: PLC0415 - half a second
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        return None
    try:
        footer = pq.read_metadata(BytesIO(tail))
        return footer.num_rows, footer_statistics(footer)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        LOG.warning(
            "%s: its Parquet footer was not read, so its rows and column statistics are not recorded; the "
            "file is written as it is: %s",
            printable(name),
            printable(str(error)),
        )
        return None


def statistics_of_file(file: Path, name: str) -> tuple[int, dict[str, ColumnStatistics]] | None:
    """Return the rows and statistics of a finished Parquet file, as `statistics_in_tail`."""
    with file.open("rb") as opened:
        opened.seek(-min(TAIL_BYTES, opened.seek(0, SEEK_END)), SEEK_END)
        return statistics_in_tail(opened.read(), name)


def footer_statistics(footer: pq.FileMetaData) -> dict[str, ColumnStatistics]:
    """Return the type of each column, and nulls, minimum and maximum of the first flat columns, by name."""
    flat = {
        column.path: index
        for index in range(footer.num_columns)
        if (column := footer.schema.column(index)).max_repetition_level == 0
        and column.max_definition_level <= 1
        and column.path == column.name
    }
    bounded = dict(list(flat.items())[:STATISTICS_COLUMNS])
    return {
        field.name: _column_statistics(footer, bounded[field.name], str(field.type))
        if field.name in bounded
        else ColumnStatistics(type=str(field.type)[:STATISTICS_LENGTH])
        for field in list(footer.schema.to_arrow_schema())[:NAMED_COLUMNS]
    }


def _column_statistics(footer: pq.FileMetaData, index: int, kind: str) -> ColumnStatistics:
    chunks = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
    known = [(chunk.num_values, chunk.statistics) for chunk in chunks]
    if any(statistics is None or not statistics.has_null_count for _, statistics in known):
        return ColumnStatistics(type=kind)
    nulls = sum(statistics.null_count for _, statistics in known)
    # A row group of nulls has no bounds and is skipped; values without bounds (NaN) make them unknown.
    bounded = [statistics for values, statistics in known if statistics.null_count < values]
    if not bounded or not all(statistics.has_min_max for statistics in bounded):
        return ColumnStatistics(type=kind, nulls=nulls)
    try:
        lowest = _short_text(min(statistics.min for statistics in bounded))
        highest = _short_text(max(statistics.max for statistics in bounded))
    except (OverflowError, ValueError, NotImplementedError):  # such as a date after the year 9999
        return ColumnStatistics(type=kind, nulls=nulls)
    if lowest is None or highest is None:
        return ColumnStatistics(type=kind, nulls=nulls)
    return ColumnStatistics(type=kind, nulls=nulls, minimum=lowest, maximum=highest)


def _short_text(value: object) -> str | None:
    """Return a bound as text; None for bytes and for long values."""
    match value:
        case bytes():
            return None
        case bool():
            text = str(value).lower()
        case Decimal():
            text = f"{value:f}"
        case _:
            text = str(value)
    return text if len(text) <= STATISTICS_LENGTH else None
