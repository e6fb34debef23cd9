"""Rows in SQL: read by key or by column, and written as one statement a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Column, Connection, Table, delete, select, tuple_
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from storage_core.journal.rows import Row
from storage_core.journal.schema import METADATA
from storage_core.journal.state import Key

R = TypeVar("R", bound=Row)
_KEYS_A_QUESTION: Final = 500
"""SQLite and PostgreSQL bound the parameters of a statement."""


class SqlRows:
    """The rows of one journal within one transaction.

    Args:
        connection: Its transaction has begun.
        journal: Name of the journal.
        lock: Let no renewal pass between reading a row and writing it.
    """

    def __init__(self, connection: Connection, journal: str, *, lock: bool = False) -> None:
        self.connection = connection
        self.journal = journal
        self._lock = lock

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the rows with these keys, those that there are."""
        table, found = _table(kind), list[R]()
        for start in range(0, len(keys), _KEYS_A_QUESTION):
            some = keys[start : start + _KEYS_A_QUESTION]
            if len(kind.KEY) == 1:
                wanted = table.c[kind.KEY[0]].in_([key[0] for key in some])
            else:
                wanted = tuple_(*(table.c[column] for column in kind.KEY)).in_(some)
            question = select(*columns_of(kind)).where(table.c.journal == self.journal, wanted)
            if self._lock:
                question = question.with_for_update()
            found += [row_of(kind, row) for row in self.connection.execute(question)]
        return found

    def where(self, kind: type[R], columns: Mapping[str, Any]) -> Sequence[R]:
        """Return the rows whose columns have these values, all of them for none, by key."""
        table = _table(kind)
        question = select(*columns_of(kind)).where(
            table.c.journal == self.journal, *(table.c[name] == value for name, value in columns.items())
        )
        question = question.order_by(*(table.c[column] for column in kind.KEY))
        return [row_of(kind, row) for row in self.connection.execute(question)]

    def write(self, changes: Mapping[Key, Row | None]) -> None:
        """Write rows, and remove those that are None."""
        put: dict[type[Row], list[Row]] = {}
        gone: dict[type[Row], list[tuple[Any, ...]]] = {}
        for (kind, key), row in changes.items():
            if row is None:
                gone.setdefault(kind, []).append(key)
            else:
                put.setdefault(kind, []).append(row)
        for kind, keys in gone.items():
            self._remove(kind, keys)
        for kind, rows in put.items():
            self._upsert(kind, rows)

    def _upsert(self, kind: type[Row], rows: Sequence[Row]) -> None:
        table = _table(kind)
        insert = postgresql_insert if self.connection.dialect.name == "postgresql" else sqlite_insert
        statement = insert(table)
        rest = [column.name for column in table.columns if not column.primary_key]
        statement = statement.on_conflict_do_update(
            index_elements=["journal", *kind.KEY], set_={name: statement.excluded[name] for name in rest}
        )
        values = [{"journal": self.journal, **msgspec.structs.asdict(row)} for row in rows]
        self.connection.execute(statement, values)

    def _remove(self, kind: type[Row], keys: Sequence[tuple[Any, ...]]) -> None:
        table = _table(kind)
        for start in range(0, len(keys), _KEYS_A_QUESTION):
            some = keys[start : start + _KEYS_A_QUESTION]
            wanted = tuple_(*(table.c[column] for column in kind.KEY)).in_(some)
            self.connection.execute(delete(table).where(table.c.journal == self.journal, wanted))


def columns_of(kind: type[Row]) -> list[Column[Any]]:
    """Return the columns of a row's fields, in the order of the fields."""
    table = _table(kind)
    return [table.c[field.name] for field in msgspec.structs.fields(kind)]


def row_of(kind: type[R], values: Iterable[Any]) -> R:
    """Return the row of these columns' values."""
    names = (field.name for field in msgspec.structs.fields(kind))
    return msgspec.convert(dict(zip(names, values, strict=True)), kind)


def _table(kind: type[Row]) -> Table:
    return METADATA.tables[kind.TABLE]
