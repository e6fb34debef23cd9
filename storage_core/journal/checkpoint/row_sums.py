"""Compare sets of rows of any size by the sums of their hashes, without an order and without keeping them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from lockgate.storage_core.journal.entries.rows import Row


class RowSums:
    """The sum of the rows' hashes, for each kind of row. Two equal sums are of the same rows.

    Columns that no entry sets (`Row.SOFT`) do not count.
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
                self._sums[type(old)] -= _hash(old)
            if new is not None:
                self._sums[type(new)] += _hash(new)

    def added(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows after adding them."""
        for row in rows:
            self._sums[type(row)] += _hash(row)
            yield row


def _hash(row: Row) -> int:
    counted = msgspec.structs.replace(row, **dict.fromkeys(row.SOFT)) if row.SOFT else row
    return int.from_bytes(blake2b(msgspec.json.encode(counted), digest_size=16).digest())
