"""The tables as one fold sees them: what it has read, under what it has changed.

A fold works on this, never on SQL. So the same code writes, replays, verifies and tails, and a refused
mutation is taken back without asking the database.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from lockgate.storage_core.journal.entries.rows import Row

R = TypeVar("R", bound=Row)
Key = tuple[type[Row], tuple[Any, ...]]
"""A table and the key of a row in it."""
Span = tuple[type[Row], tuple[Any, ...]]
"""A table and the beginning of the keys of some rows in it, such as all references to one blob."""


class Rows(Protocol):
    """Where rows are read from."""

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the rows with these keys, those that there are."""

    def where(self, kind: type[R], columns: Mapping[str, Any], *, limit: int | None = None) -> Sequence[R]:
        """Return the rows whose columns have these values, or as many of them as the limit says."""

    def within(self, kind: type[R], beginnings: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the rows whose keys begin so; the beginnings are equally long."""


class State:
    """Rows read and rows changed; nothing is written until `changes` is."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._read: dict[Key, Row | None] = {}
        self._changed: dict[Key, Row | None] = {}
        self._undo: list[tuple[Key, bool, Row | None]] = []
        self._spans: dict[Span, set[tuple[Any, ...]]] = {}
        self._lengths: dict[type[Row], set[int]] = {}

    def load(self, keys: Iterable[Key]) -> None:
        """Read what will be asked for, a table a question."""
        for kind, missing in by_kind(key for key in keys if key not in self._read).items():
            self.learn(kind, missing, self._rows.find(kind, missing))

    def load_spans(self, spans: Iterable[Span]) -> None:
        """Read what `where` will be asked for by the beginning of a key, a table a question."""
        unread = (span for span in spans if span not in self._spans)
        for (kind, _), beginnings in by_length(unread).items():
            self.learn_spans([(kind, one) for one in beginnings], self._rows.within(kind, beginnings))

    def learn(self, kind: type[R], keys: Iterable[tuple[Any, ...]], rows: Iterable[R]) -> None:
        """Take rows for what was found under these keys; nothing was under the rest of them."""
        found = {row.key: row for row in rows}
        self._read.update({(kind, key): found.get(key) for key in keys})

    def learn_spans(self, spans: Iterable[Span], rows: Iterable[Row]) -> None:
        """Take rows for all that was found in these spans."""
        for kind, beginning in spans:
            self._spans[kind, beginning] = set()
            self._lengths.setdefault(kind, set()).add(len(beginning))
        for at in self._changed:
            self._note_in_spans(at)
        for row in rows:
            self._read.setdefault((type(row), row.key), row)
            self._note_in_spans((type(row), row.key))

    def get(self, kind: type[R], *key: Any) -> R | None:
        """Return the row with this key as it is now, None if there is none."""
        at = (kind, key)
        if at not in self._changed and at not in self._read:
            self.load([at])
        return cast("R | None", self._changed[at] if at in self._changed else self._read[at])

    def where(self, kind: type[R], **columns: Any) -> list[R]:
        """Return the rows whose columns have these values now, by key."""
        if tuple(columns) == kind.KEY[: len(columns)]:
            keys = self._spans.get((kind, tuple(columns.values())))
            if keys is not None:
                rows = [self._now((kind, key)) for key in sorted(keys)]
                return [cast("R", row) for row in rows if row is not None]
        found: dict[tuple[Any, ...], R] = {}
        for row in self._rows.where(kind, columns):
            self._read.setdefault((kind, row.key), row)
            if (kind, row.key) not in self._changed:
                found[row.key] = row
        for (of, key), changed in self._changed.items():
            if of is kind and isinstance(changed, kind) and _has(changed, columns):
                found[key] = changed
        return [found[key] for key in sorted(found)]

    def has(self, kind: type[Row], **columns: Any) -> bool:
        """Tell whether a row's columns have these values now; reads no more rows than that takes."""
        changed = [row for (of, _), row in self._changed.items() if of is kind]
        if any(row is not None and _has(row, columns) for row in changed):
            return True
        stored = self._rows.where(kind, columns, limit=len(changed) + 1)
        return any((kind, row.key) not in self._changed for row in stored)

    def put(self, row: Row) -> None:
        """Insert the row, or take the place of the one with its key."""
        self._set((type(row), row.key), row)

    def delete(self, row: Row) -> None:
        """Remove the row with this one's key."""
        self._set((type(row), row.key), None)

    def mark(self) -> int:
        """Return a point that `undo` goes back to."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back every change since a mark: what a savepoint's rollback is in SQL."""
        while len(self._undo) > mark:
            at, was_changed, row = self._undo.pop()
            if was_changed:
                self._changed[at] = row
            else:
                del self._changed[at]

    @property
    def changes(self) -> Mapping[Key, Row | None]:
        """What is to be written: rows, and None for those that are to go."""
        return self._changed

    @property
    def absent(self) -> Container[Key]:
        """What was looked for and not found: keys of no row that is stored."""
        return {at for at, row in self._read.items() if row is None}

    def _set(self, at: Key, row: Row | None) -> None:
        self._undo.append((at, at in self._changed, self._changed.get(at)))
        self._changed[at] = row
        self._note_in_spans(at)

    def _now(self, at: Key) -> Row | None:
        return self._changed[at] if at in self._changed else self._read.get(at)

    def _note_in_spans(self, at: Key) -> None:
        """Let the spans that a key lies in know it; that it is there no more, they need not know."""
        kind, key = at
        for length in self._lengths.get(kind, ()):
            span = self._spans.get((kind, key[:length]))
            if span is not None:
                span.add(key)


def by_kind(keys: Iterable[Key]) -> dict[type[Row], list[tuple[Any, ...]]]:
    """Return the keys of each table, once each, in their order."""
    wanted: dict[type[Row], list[tuple[Any, ...]]] = {}
    for kind, key in dict.fromkeys(keys):
        wanted.setdefault(kind, []).append(key)
    return wanted


def _has(row: Row, columns: Mapping[str, Any]) -> bool:
    return all(getattr(row, column) == value for column, value in columns.items())


def by_length(spans: Iterable[Span]) -> dict[tuple[type[Row], int], list[tuple[Any, ...]]]:
    """Return the beginnings of the spans of each table that are equally long, once each, in their order."""
    wanted: dict[tuple[type[Row], int], list[tuple[Any, ...]]] = {}
    for kind, beginning in dict.fromkeys(spans):
        wanted.setdefault((kind, len(beginning)), []).append(beginning)
    return wanted
