"""Replay: entries folded again, as they were when they were written.

Renewals are no entries, so a replayed lease looks older than it did: what could be taken then can be taken
now, and only the word in which its state was told may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from storage_core.errors import LockgateError, MalformedJournalError
from storage_core.journal.epochs import Epoch, epoch_of
from storage_core.journal.ops import Moment, Op, decode_op, decode_result
from storage_core.journal.ops.leases import Granted, LeaseState
from storage_core.journal.reading import Entry, Reading
from storage_core.journal.rows import Row
from storage_core.journal.state import Key, Rows, State

R = TypeVar("R", bound=Row)
BATCH: Final = 1000
"""Entries that are read, folded and written together."""

_BY_RENEWAL: Final = frozenset({LeaseState.HELD, LeaseState.SOFT, LeaseState.HARD, LeaseState.RECOVERING})


class WritableRows(Rows, Protocol):
    """Rows that can be changed, too."""

    def write(self, changes: Mapping[Key, Row | None]) -> None:
        """Write rows, and remove those that are None."""


class MemoryRows:
    """Rows that nobody else has: what `verify` folds into."""

    def __init__(self) -> None:
        self._rows: dict[type[Row], dict[tuple[Any, ...], Row]] = {}
        self._indexes: dict[type[Row], dict[tuple[str, ...], _Index]] = {}

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the rows with these keys, those that there are."""
        rows = self.all(kind)
        return [rows[key] for key in keys if key in rows]

    def where(self, kind: type[R], columns: Mapping[str, Any]) -> Sequence[R]:
        """Return the rows whose columns have these values."""
        rows, names = self.all(kind), tuple(columns)
        indexes = self._indexes.setdefault(kind, {})
        if names not in indexes:
            indexes[names] = {}
            for key, row in rows.items():
                indexes[names].setdefault(_values(row, names), set()).add(key)
        return [rows[key] for key in indexes[names].get(tuple(columns.values()), ())]

    def write(self, changes: Mapping[Key, Row | None]) -> None:
        """Write rows, and remove those that are None."""
        for (kind, key), row in changes.items():
            before = self.all(kind).pop(key, None)
            if row is not None:
                self.all(kind)[key] = row
            for names, index in self._indexes.get(kind, {}).items():
                if before is not None:
                    index[_values(before, names)].discard(key)
                if row is not None:
                    index.setdefault(_values(row, names), set()).add(key)

    def all(self, kind: type[R]) -> dict[tuple[Any, ...], R]:
        """Return a table's rows by key."""
        return cast("dict[tuple[Any, ...], R]", self._rows.setdefault(kind, {}))


_Index = dict[tuple[Any, ...], set[tuple[Any, ...]]]
"""Keys of rows by the values of some columns."""


def _values(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)


def batches(reading: Reading, after: int, last: int) -> Iterator[Sequence[Entry]]:
    """Yield the entries after one sequence up to another, some at a time.

    Raises:
        MalformedJournalError: One is missing; the message names it.
    """
    while after < last:
        entries = reading.entries(after, min(BATCH, last - after))
        expected = range(after + 1, after + 1 + len(entries))
        for entry, sequence in zip(entries, expected, strict=True):
            if entry.sequence != sequence:
                raise _gap(sequence, entry.sequence - 1)
        if not entries:
            raise _gap(after + 1, last)
        yield entries
        after = entries[-1].sequence


def replay(rows: WritableRows, entries: Sequence[Entry], epochs: Sequence[Epoch]) -> None:
    """Fold entries into rows, and see that each is what it was.

    Raises:
        MalformedJournalError: An entry is unknown, of a wrong epoch, is refused or has another result now;
            the message names it. None of these entries was written to the rows.
    """
    ops = [decode_op(entry.op, entry.payload, _name(entry)) for entry in entries]
    state = State(rows)
    state.load(key for op in ops for key in op.touches())
    for entry, op in zip(entries, ops, strict=True):
        if entry.epoch != epoch_of(epochs, entry.sequence):
            raise MalformedJournalError(
                f"{_name(entry)}: by the journal's epochs it belongs to {epoch_of(epochs, entry.sequence)}"
            )
        _fold(state, entry, op)
    rows.write(state.changes)


def _fold(state: State, entry: Entry, op: Op) -> None:
    stored = decode_result(op, entry.result, _name(entry))
    try:
        result = op.fold(state, Moment(stamp=entry.stamp, at_s=entry.at_s))
    except LockgateError as error:
        raise MalformedJournalError(
            f"{_name(entry)}: {entry.op} was accepted once, and is refused on replay: {error}"
        ) from None
    if _comparable(result) != _comparable(stored):
        raise MalformedJournalError(
            f"{_name(entry)}: {entry.op} gives {result!r} on replay, where {stored!r} was answered"
        )


def _comparable(result: Any) -> Any:
    """Leave out what renewals decide: they are outside the fold."""
    if isinstance(result, Granted) and result.before in _BY_RENEWAL:
        return msgspec.structs.replace(result, before=LeaseState.HELD)
    return result


def _gap(first: int, last: int) -> MalformedJournalError:
    missing = f"entry {first} is" if first >= last else f"entries {first} to {last} are"
    return MalformedJournalError(f"{missing} missing: the journal has a gap; what follows cannot be replayed")


def _name(entry: Entry) -> str:
    return f"entry {entry.stamp}"


def load(rows: WritableRows, loaded: Iterable[Row]) -> None:
    """Put rows of a snapshot under what will be replayed."""
    some: dict[Key, Row | None] = {}
    for row in loaded:
        some[type(row), row.key] = row
        if len(some) == BATCH:
            rows.write(some)
            some = {}
    rows.write(some)
