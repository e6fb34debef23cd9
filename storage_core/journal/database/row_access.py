"""Read rows by key or column with SQL, and write them with one statement for each table."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Column, Connection, func, select, tuple_

from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.pipeline import Statement, execute_pipelined, is_sqlite
from lockgate.storage_core.journal.database.renewals import lock_holders
from lockgate.storage_core.journal.database.schema import read_columns, table_of
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.state import Key, Row

R = TypeVar("R", bound=Row)


class SqlRows:
    """The rows of one journal in one transaction.

    Args:
        connection: Connection with an open transaction.
        journal: Name of the journal.
        lock: Lock the holders of leases before these are read, against renewals before they are written.
    """

    def __init__(self, connection: Connection, journal: str, *, lock: bool = False) -> None:
        self.connection = connection
        self.journal = journal
        self._lock = lock

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the existing rows with these keys."""
        *_, found = execute_pipelined(
            self.connection, [*self.locks(kind, keys), self.select_by_key(kind, keys)]
        )
        return rows_of(kind, found)

    def locks(self, kind: type[Row], keys: Sequence[tuple[Any, ...]]) -> list[Statement]:
        """Return the statements to execute before rows are selected by key: see `renewals.py`."""
        is_needed = self._lock and kind is Lease and keys and not is_sqlite(self.connection)
        return [lock_holders(self.journal, keys)] if is_needed else []

    def select_by_key(self, kind: type[Row], keys: Sequence[tuple[Any, ...]]) -> Statement:
        """Return the statement that selects rows by key; `row_of` converts its result."""
        return bulk.select_by_key(self.connection, table_of(kind), self.journal, keys)

    def select_by_columns(
        self, kind: type[Row], columns: tuple[str, ...], values: Sequence[tuple[Any, ...]]
    ) -> Statement:
        """Return the statement that selects rows by indexed columns; `row_of` converts its result."""
        return bulk.select_by_columns(self.connection, table_of(kind), self.journal, columns, values)

    def within(
        self, kind: type[R], columns: tuple[str, ...], values: Sequence[tuple[Any, ...]]
    ) -> Sequence[R]:
        """Return the rows whose columns have one of these sets of values; an index finds them."""
        (found,) = execute_pipelined(self.connection, [self.select_by_columns(kind, columns, values)])
        return rows_of(kind, found)

    def where(
        self,
        kind: type[R],
        columns: Mapping[str, Any],
        *,
        limit: int | None = None,
        after: tuple[Any, ...] | None = None,
    ) -> Sequence[R]:
        """Return the rows whose columns have these values, by key."""
        table = table_of(kind)
        query = select(*columns_of(kind)).where(
            table.c.journal == self.journal, *(table.c[name] == value for name, value in columns.items())
        )
        if columns and limit is None and after is None:  # to order by key, SQLite reads all rows
            return sorted(rows_of(kind, self.connection.execute(query)), key=attrgetter("key"))
        # Without the columns that have one value: with them, databases sort all rows before the first page.
        rest = [number for number, column in enumerate(kind.KEY) if column not in columns]
        key = [table.c[kind.KEY[number]] for number in rest]
        if after is not None:
            query = query.where(tuple_(*key) > tuple_(*(after[number] for number in rest)))
        query = query.order_by(*key).limit(limit)
        return rows_of(kind, self.connection.execute(query))

    def count(self, kind: type[Row]) -> int:
        """Return the number of rows. It reads an index of all of them."""
        table = table_of(kind)
        query = select(func.count()).select_from(table).where(table.c.journal == self.journal)
        return int(self.connection.execute(query).scalar_one())

    def greatest(self, kind: type[Row], column: str) -> Any:
        """Return the greatest value of a column, None if there are no rows. It reads all of them."""
        table = table_of(kind)
        query = select(func.max(table.c[column])).where(table.c.journal == self.journal)
        return self.connection.execute(query).scalar_one()

    def quantiles(self, kind: type[Row], columns: Mapping[str, Any], column: str, parts: int) -> list[Any]:
        """Return the greatest value of a column in each of so many equal parts of the rows, in order.

        Args:
            kind: Kind of the rows.
            columns: Values of other columns that the rows have.
            column: The column that orders them.
            parts: Number of parts; fewer if there are fewer rows.
        """
        at = table_of(kind).c
        part = func.ntile(parts).over(order_by=at[column]).label("part")
        rows = select(at[column].label("value"), part).where(
            at.journal == self.journal, *(at[name] == value for name, value in columns.items())
        )
        each = rows.subquery().c
        query = select(func.max(each.value)).group_by(each.part).order_by(each.part)
        return list(self.connection.execute(query).scalars())

    def write(self, changes: Mapping[Key, Row | None], absent: Container[Key] = ()) -> None:
        """Write rows, and delete those that are None.

        Args:
            changes: Rows by key.
            absent: Keys known to have no row; inserting these is faster.
        """
        rows, removals = self.to_write(changes, absent)
        bulk.store(self.connection, self.journal, rows, removals)

    def to_write(
        self, changes: Mapping[Key, Row | None], absent: Container[Key]
    ) -> tuple[list[bulk.Change], list[Statement]]:
        """Return the rows to write and the statements that delete rows."""
        put: dict[tuple[type[Row], bool], list[Row]] = {}
        gone: dict[type[Row], list[tuple[Any, ...]]] = {}
        for (kind, key), row in changes.items():
            if row is None:
                gone.setdefault(kind, []).append(key)
            else:
                put.setdefault((kind, (kind, key) in absent), []).append(row)
        written = [bulk.Change(table_of(kind), rows, is_new) for (kind, is_new), rows in put.items()]
        removed = [
            bulk.delete_by_key(self.connection, table_of(kind), self.journal, keys)
            for kind, keys in gone.items()
        ]
        return written, removed


def columns_of(kind: type[Row]) -> list[Column[Any]]:
    """Return the columns to select for a kind of row, in the order of its fields."""
    return read_columns(table_of(kind))


def row_of(kind: type[R], values: Iterable[Any]) -> R:
    """Return the row with these values of `columns_of`.

    Raises:
        MalformedJournalError: A value is invalid; the message names the row.
    """
    (row,) = rows_of(kind, [values])
    return row


def rows_of(kind: type[R], many: Iterable[Iterable[Any]]) -> list[R]:
    """Return the rows with these values of `columns_of`.

    Raises:
        MalformedJournalError: A value is invalid; the message names the row.
    """
    names = _fields(kind)
    rows = [dict(zip(names, values, strict=True)) for values in many]
    try:
        return convert(rows, list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        for row in rows:
            _check(row, kind)
        raise


def _check(row: Mapping[str, Any], kind: type[Row]) -> None:
    try:
        convert(row, kind)
    except msgspec.ValidationError as error:
        name = "/".join(str(row[column]) for column in kind.KEY)
        raise MalformedJournalError(
            f"{kind.TABLE} {name} cannot be read: {error}; restore the journal: `lockgate journal restore`"
        ) from None


@cache
def _fields(kind: type[Row]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))
