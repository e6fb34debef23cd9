"""Manifest: the live files of a destination after a turn.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

import msgspec

from lockgate.storage_core.commit.records.destination_log.live_files import LiveFile
from lockgate.storage_core.commit.records.job import Column
from lockgate.storage_core.commit.records.shards import total_rows


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Live files of a destination after a turn: whole jobs only.

    Attributes:
        turn: Last turn included; 0 if nothing was ever published.
        files: Live files by key.
        columns: Columns that the last job with known columns wrote, as wide as those of earlier data.
        dropped: Columns that only earlier data have.
    """

    turn: int
    files: dict[str, LiveFile]
    columns: tuple[Column, ...] | None
    dropped: tuple[Column, ...] = ()

    @property
    def all_columns(self) -> tuple[Column, ...] | None:
        """Columns of all live data; None if no job knew its columns."""
        return None if self.columns is None else (*self.columns, *self.dropped)

    @property
    def rows(self) -> int | None:
        """Rows of all files; None if any is unknown."""
        return total_rows(file.rows for file in self.files.values())

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.size for file in self.files.values())
