"""Extract column statistics from a Parquet footer for the pending set."""

from __future__ import annotations

from typing import Final

import pyarrow.parquet as pq

from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.spark.schema.hive_layout import NEWEST_CAST

STATISTICS_COLUMNS: Final = 32
"""Maximum number of columns with statistics, which keeps pending sets small."""
STATISTICS_LENGTH: Final = 64
"""Maximum length of a minimum or maximum as text."""


def footer_statistics(footer: pq.FileMetaData) -> dict[str, ColumnStatistics]:
    """Return nulls, minimum and maximum of the first flat columns, by name."""
    flat = [
        (index, column.path)
        for index in range(footer.num_columns)
        if (column := footer.schema.column(index)).max_repetition_level == 0
        and column.max_definition_level <= 1
        and column.path == column.name
    ]
    return {path: _column_statistics(footer, index) for index, path in flat[:STATISTICS_COLUMNS]}


def _column_statistics(footer: pq.FileMetaData, index: int) -> ColumnStatistics:
    chunks = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
    known = [(chunk.num_values, chunk.statistics) for chunk in chunks]
    if any(statistics is None or not statistics.has_null_count for _, statistics in known):
        return ColumnStatistics()
    nulls = sum(statistics.null_count for _, statistics in known)
    # A row group of nulls has no bounds and is skipped; values without bounds (NaN) make them unknown.
    bounded = [statistics for values, statistics in known if statistics.null_count < values]
    if not bounded or not all(statistics.has_min_max for statistics in bounded):
        return ColumnStatistics(nulls=nulls)
    lowest = _short_text(min(statistics.min for statistics in bounded))
    highest = _short_text(max(statistics.max for statistics in bounded))
    if lowest is None or highest is None:
        return ColumnStatistics(nulls=nulls)
    return ColumnStatistics(nulls=nulls, minimum=lowest, maximum=highest)


def _short_text(value: object) -> str | None:
    """Return a bound as text; None for bytes and for long values."""
    if isinstance(value, bytes):
        return None
    text = NEWEST_CAST.text(value) or ""
    return text if len(text) <= STATISTICS_LENGTH else None
