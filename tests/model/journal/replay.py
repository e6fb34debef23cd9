"""Fold entries over rows in memory: the expected result of replay and restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from lockgate.storage_core.journal.entries.family import decode_op, known_families
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.op import Moment
from lockgate.storage_core.journal.entries.state import Row, State
from lockgate.storage_core.journal.read.snapshot_read import Entry

R = TypeVar("R", bound=Row)


class MemoryRows:
    """In-memory tables.

    Attributes:
        sequence: Sequence number of the newest applied entry.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self._rows: dict[type[Row], dict[tuple[Any, ...], Row]] = {kind: {} for kind in known_families().rows}

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        return [self._rows[kind][key] for key in keys if key in self._rows[kind]]  # type: ignore[misc]

    def where(self, kind: type[R], columns: Mapping[str, Any], *, limit: int | None = None) -> Sequence[R]:
        rows = self._rows[kind].values()
        found = [row for row in rows if all(getattr(row, name) == value for name, value in columns.items())]
        return found[:limit]  # type: ignore[return-value]

    def within(
        self, kind: type[R], columns: tuple[str, ...], values: Sequence[tuple[Any, ...]]
    ) -> Sequence[R]:
        rows = self._rows[kind].values()
        return [row for row in rows if tuple(getattr(row, name) for name in columns) in values]  # type: ignore[misc]

    def change(self, changes: Mapping[tuple[type[Row], tuple[Any, ...]], Row | None]) -> None:
        for (kind, key), row in changes.items():
            if row is None:
                self._rows[kind].pop(key, None)
            else:
                self._rows[kind][key] = row

    def copy(self) -> MemoryRows:
        copied = MemoryRows()
        copied.sequence = self.sequence
        copied._rows = {kind: dict(rows) for kind, rows in self._rows.items()}
        return copied

    def tables(self) -> dict[type[Row], dict[tuple[Any, ...], dict[str, Any]]]:
        """Return all rows without the one column that no entry sets."""
        shown = {
            kind: {key: msgspec.structs.asdict(row) for key, row in rows.items()}
            for kind, rows in self._rows.items()
        }
        for lease in shown[Lease].values():
            del lease["renewed_s"], lease["dropped_s"]
        return shown


def replay(rows: MemoryRows, entries: Sequence[Entry]) -> MemoryRows:
    """Fold entries that follow the state of the rows; return the rows."""
    for entry in entries:
        assert entry.sequence == rows.sequence + 1
        state = State(rows)
        op = decode_op(entry.op, entry.payload, f"entry {entry.stamp}")
        op.fold(state, Moment(stamp=entry.stamp, at_s=entry.at_s))
        rows.change(state.changes)
        rows.sequence = entry.sequence
    return rows
