"""Records of a destination's tables: which formats its turns are projected into, and statistics of files.

Source: tables, "How users meet it".
"""

from __future__ import annotations

import msgspec

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import Count, TurnNumber
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.ids import Token


class TableFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table format of a destination.

    Attributes:
        first_turn: Turn of the table's first version. If it is not 1, that version has all files that were
            live after it.
        enabled: Whether later turns are projected.
        statistics: Digests of `StatisticsShard` records of the files of that first version, by key, 1,000 a
            shard; empty if their footers were not read.
    """

    first_turn: TurnNumber
    enabled: bool = True
    statistics: tuple[str, ...] = ()


class TablesRecord(Record, frozen=True, tag="tables"):
    """`tables/<number>.json`: the destination's table formats; the highest number counts.

    Attributes:
        number: Number of the change, from 1.
        table_id: UUID of the table, the same in all formats.
        token: Owner token of the process that made the change.
        changed_s: Time of the change.
        formats: Formats by name.
    """

    number: Count
    table_id: str
    token: Token
    changed_s: float
    formats: dict[str, TableFormat]

    @property
    def enabled(self) -> dict[str, TableFormat]:
        """The formats that turns are projected into."""
        return {name: each for name, each in self.formats.items() if each.enabled}


class StatisticsShard(Record, frozen=True, tag="file-statistics"):
    """Statistics of up to 1,000 files, by column, in the order of the list of files that they belong to."""

    files: tuple[dict[str, ColumnStatistics], ...]
