"""Rows, and the tables as a fold sees them: rows read, overlaid by rows changed.

Folds use this and no SQL, so that the same code writes, replays and verifies, and a refused mutation is
undone without the database.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, cast

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of a table, without the column `journal`. Each field is a column of the same name.

    Each table is derived from its kind of row.

    Attributes:
        TABLE: Name of the table.
        KEY: Columns of the primary key.
        INDEXES: Columns of each other index.
        SORTED_FROM: Column from which on an index is in the order of code points, by which pages of lists are
            read; a PostgreSQL database may have another order. A column of the key has that order itself.
        SOFT: Columns that no entry sets, so that entries alone do not give them.
    """

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    INDEXES: ClassVar[tuple[tuple[str, ...], ...]] = ()
    SORTED_FROM: ClassVar[str] = ""
    SOFT: ClassVar[tuple[str, ...]] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY`."""
        return tuple([getattr(self, column) for column in self.KEY])


R = TypeVar("R", bound=Row)
Key = tuple[type[Row], tuple[Any, ...]]
"""A kind of row, and the key of one."""
Span = tuple[type[Row], tuple[str, ...], tuple[Any, ...]]
"""A kind of row, first columns of its key or of an index, and values of them that several rows share, such as
those of all references to one blob."""


class Request(Row, frozen=True):
    """A request whose entry was pruned, and its result."""

    TABLE: ClassVar = "request"
    KEY: ClassVar = ("request_id",)

    request_id: str
    epoch: int
    sequence: int
    op: str
    result: str
    at_s: float


class Rows(Protocol):
    """A source of rows."""

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the existing rows with these keys."""

    def where(self, kind: type[R], columns: Mapping[str, Any], *, limit: int | None = None) -> Sequence[R]:
        """Return the rows whose columns have these values, at most `limit`."""

    def within(
        self, kind: type[R], columns: tuple[str, ...], values: Sequence[tuple[Any, ...]]
    ) -> Sequence[R]:
        """Return the rows whose columns have one of these sets of values."""


class State:
    """Rows read and rows changed. The caller writes `changes` to the database."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._read: dict[Key, Row | None] = {}
        self._changed: dict[Key, Row | None] = {}
        self._undo: list[tuple[Key, bool, Row | None]] = []
        self._spans: dict[Span, set[tuple[Any, ...]]] = {}
        self._columns: dict[type[Row], set[tuple[str, ...]]] = {}

    def load(self, keys: Iterable[Key]) -> None:
        """Read rows that will be needed, in one query for each table."""
        for kind, missing in by_kind(key for key in keys if key not in self._read).items():
            self.add(kind, missing, self._rows.find(kind, missing))

    def load_spans(self, spans: Iterable[Span]) -> None:
        """Read spans that `where` will need, in one query for each table and its columns."""
        unread = (span for span in spans if span not in self._spans)
        for (kind, columns), values in by_columns(unread).items():
            self.add_spans([(kind, columns, one) for one in values], self._rows.within(kind, columns, values))

    def add(self, kind: type[R], keys: Iterable[tuple[Any, ...]], rows: Iterable[R]) -> None:
        """Add the rows found for these keys; the other keys have no row."""
        found = {row.key: row for row in rows}
        self._read.update({(kind, key): found.get(key) for key in keys})

    def add_spans(self, spans: Iterable[Span], rows: Iterable[Row]) -> None:
        """Add all rows found in these spans."""
        for kind, columns, values in spans:
            self._spans[kind, columns, values] = set()
            self._columns.setdefault(kind, set()).add(columns)
        for changed in self._changed.values():
            self._note_in_spans(changed)
        for row in rows:
            self._read.setdefault((type(row), row.key), row)
            self._note_in_spans(row)

    def get(self, kind: type[R], *key: Any) -> R | None:
        """Return the current row with this key, None if it does not exist."""
        at = (kind, key)
        if at not in self._changed and at not in self._read:
            self.load([at])
        return cast("R | None", self._changed[at] if at in self._changed else self._read[at])

    def where(self, kind: type[R], **columns: Any) -> list[R]:
        """Return the rows whose columns currently have these values, by key."""
        keys = self._spans.get((kind, tuple(columns), tuple(columns.values())))
        if keys is not None:
            rows = [self._current((kind, key)) for key in sorted(keys)]
            return [cast("R", row) for row in rows if row is not None and _has(row, columns)]
        found: dict[tuple[Any, ...], R] = {}
        for row in self._rows.where(kind, columns):
            self._read.setdefault((kind, row.key), row)
            if (kind, row.key) not in self._changed:
                found[row.key] = row
        for (_, key), changed in self._changed.items():
            if isinstance(changed, kind) and _has(changed, columns):
                found[key] = changed
        return [found[key] for key in sorted(found)]

    def has(self, kind: type[Row], **columns: Any) -> bool:
        """Return whether a row's columns currently have these values; read as few rows as possible."""
        changed = [row for (changed_kind, _), row in self._changed.items() if changed_kind is kind]
        if any(row is not None and _has(row, columns) for row in changed):
            return True
        stored = self._rows.where(kind, columns, limit=len(changed) + 1)
        return any((kind, row.key) not in self._changed for row in stored)

    def put(self, row: Row) -> None:
        """Insert the row, or replace the one with its key."""
        self._set((type(row), row.key), row)

    def delete(self, row: Row) -> None:
        """Delete the row with this row's key."""
        self._set((type(row), row.key), None)

    def mark(self) -> int:
        """Return a savepoint for `undo`."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Undo all changes since a mark, like SQL's ROLLBACK TO SAVEPOINT."""
        while len(self._undo) > mark:
            at, was_changed, row = self._undo.pop()
            if was_changed:
                self._changed[at] = row
            else:
                del self._changed[at]

    @property
    def changes(self) -> Mapping[Key, Row | None]:
        """The rows to write, by key; None deletes the row."""
        return self._changed

    @property
    def replacements(self) -> Iterator[tuple[Row | None, Row | None]]:
        """The stored row and the new one of each change, once all were loaded; None where there is none."""
        for at, row in self._changed.items():
            yield self._read[at], row

    @property
    def absent(self) -> Container[Key]:
        """Keys that were read and have no stored row."""
        return {at for at, row in self._read.items() if row is None}

    def _set(self, at: Key, row: Row | None) -> None:
        self._undo.append((at, at in self._changed, self._changed.get(at)))
        self._changed[at] = row
        self._note_in_spans(row)

    def _current(self, at: Key) -> Row | None:
        return self._changed[at] if at in self._changed else self._read.get(at)

    def _note_in_spans(self, row: Row | None) -> None:
        """Add a row's key to the spans that contain it; keys of deleted and changed rows may stay there."""
        kind = type(row)
        if row is None or kind not in self._columns:
            return
        for columns in self._columns[kind]:
            span = self._spans.get((kind, columns, tuple(getattr(row, column) for column in columns)))
            if span is not None:
                span.add(row.key)


def by_kind(keys: Iterable[Key]) -> dict[type[Row], list[tuple[Any, ...]]]:
    """Return the distinct keys of each kind of row, in their order."""
    grouped: dict[type[Row], list[tuple[Any, ...]]] = {}
    for kind, key in dict.fromkeys(keys):
        grouped.setdefault(kind, []).append(key)
    return grouped


def _has(row: Row, columns: Mapping[str, Any]) -> bool:
    return all(getattr(row, column) == value for column, value in columns.items())


def prefix(kind: type[Row], *values: Any) -> Span:
    """Return the span of the rows whose keys begin with these values."""
    return kind, kind.KEY[: len(values)], values


def by_columns(
    spans: Iterable[Span],
) -> dict[tuple[type[Row], tuple[str, ...]], list[tuple[Any, ...]]]:
    """Return the distinct values of the spans, by kind of row and columns, in their order."""
    grouped: dict[tuple[type[Row], tuple[str, ...]], list[tuple[Any, ...]]] = {}
    for kind, columns, values in dict.fromkeys(spans):
        grouped.setdefault((kind, columns), []).append(values)
    return grouped
