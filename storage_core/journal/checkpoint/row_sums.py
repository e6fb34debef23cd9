"""Compare sets of rows of any size by the sums of their hashes, without an order and without keeping them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final

import msgspec

from lockgate.storage_core.journal.entries.state import Row

_encode: Final = msgspec.json.Encoder().encode


class RowSums:
    """The sum of the rows' hashes, for each kind of row. Two equal sums are of the same rows.

    Columns that no entry sets (`Row.SOFT`) do not count. A hash is of the values in the order of the columns,
    so that values from a table need not become a row.
    """

    def __init__(self) -> None:
        self._sums = Counter[type[Row]]()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSums) and self._sums == other._sums

    __hash__ = None  # type: ignore[assignment]

    def replace(self, rows: Iterable[tuple[Row | None, Row | None]]) -> None:
        """Replace rows, given as pairs of the old and the new one; None where there is none."""
        for old, new in rows:
            if old is not None:
                self._sums[type(old)] -= _hash(_counted(type(old))(old))
            if new is not None:
                self._sums[type(new)] += _hash(_counted(type(new))(new))

    def added(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows after adding them."""
        for row in rows:
            self.add(row)
            yield row

    def add(self, row: Row) -> None:
        """Add a row."""
        kind = type(row)
        self._sums[kind] += _hash(_counted(kind)(row))

    def add_values(self, kind: type[Row], many: Iterable[tuple[Any, ...]]) -> None:
        """Add rows, given as the values of `counted_fields`."""
        self._sums[kind] += sum(map(_hash, many))


def counted_fields(kind: type[Row]) -> tuple[str, ...]:
    """Return the names of the columns that count, in the order of the fields."""
    return tuple(name for name in kind.__struct_fields__ if name not in kind.SOFT)


@cache
def _counted(kind: type[Row]) -> Callable[[Row], tuple[Any, ...]]:
    """Return what gives the values of a row's `counted_fields`."""
    if not kind.SOFT:
        return msgspec.structs.astuple
    at = [kind.__struct_fields__.index(name) for name in counted_fields(kind)]
    some = itemgetter(*at)
    return lambda row: some(msgspec.structs.astuple(row))


def _hash(values: tuple[Any, ...]) -> int:
    return int.from_bytes(blake2b(_encode(values), digest_size=16).digest())
