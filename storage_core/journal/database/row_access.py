"""Rows in SQL: read by key or by column, and written as one statement a table."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Column, Connection, select

from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.pipeline import Question, ask
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.rows import Lease, Row
from lockgate.storage_core.journal.entries.state import Key

R = TypeVar("R", bound=Row)

_RENEWED: Final = frozenset[type[Row]]({Lease})
"""Rows that others change without the head's lock: see `leases.renew`."""


class SqlRows:
    """The rows of one journal within one transaction.

    Args:
        connection: Its transaction has begun.
        journal: Name of the journal.
        lock: Let no renewal pass between reading a lease and writing it.
    """

    def __init__(self, connection: Connection, journal: str, *, lock: bool = False) -> None:
        self.connection = connection
        self.journal = journal
        self._lock = lock

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the rows with these keys, those that there are."""
        (found,) = ask(self.connection, [self.looking_for(kind, keys)])
        return [row_of(kind, row) for row in found]

    def looking_for(self, kind: type[Row], keys: Sequence[tuple[Any, ...]]) -> Question:
        """Ask for the rows with these keys: `row_of` reads what comes back."""
        lock = self._lock and kind in _RENEWED
        return bulk.looking_for(self.connection, table_of(kind), self.journal, keys, lock=lock)

    def looking_in(self, kind: type[Row], beginnings: Sequence[tuple[Any, ...]]) -> Question:
        """Ask for the rows whose keys begin so, all equally long: `row_of` reads what comes back."""
        return bulk.looking_in(self.connection, table_of(kind), self.journal, kind.KEY, beginnings)

    def within(self, kind: type[R], beginnings: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        """Return the rows whose keys begin so; the beginnings are equally long."""
        (found,) = ask(self.connection, [self.looking_in(kind, beginnings)])
        return [row_of(kind, row) for row in found]

    def where(self, kind: type[R], columns: Mapping[str, Any], *, limit: int | None = None) -> Sequence[R]:
        """Return the rows whose columns have these values, all of them for none, by key.

        Args:
            kind: Of the rows.
            columns: By name.
            limit: Greatest number.
        """
        table = table_of(kind)
        question = select(*columns_of(kind)).where(
            table.c.journal == self.journal, *(table.c[name] == value for name, value in columns.items())
        )
        question = question.order_by(*(table.c[column] for column in kind.KEY)).limit(limit)
        return [row_of(kind, row) for row in self.connection.execute(question)]

    def write(self, changes: Mapping[Key, Row | None], absent: Container[Key] = ()) -> None:
        """Write rows, and remove those that are None.

        Args:
            changes: By key.
            absent: Keys that no row has now: rows with them are sooner written.
        """
        rows, questions = self.to_write(changes, absent)
        bulk.store(self.connection, self.journal, rows, questions)

    def to_write(
        self, changes: Mapping[Key, Row | None], absent: Container[Key]
    ) -> tuple[list[bulk.Change], list[Question]]:
        """Return what `write` stores."""
        put: dict[tuple[type[Row], bool], list[Row]] = {}
        gone: dict[type[Row], list[tuple[Any, ...]]] = {}
        for at, row in changes.items():
            if row is None:
                gone.setdefault(at[0], []).append(at[1])
            else:
                put.setdefault((at[0], at in absent), []).append(row)
        written = [bulk.Change(table_of(kind), rows, is_new) for (kind, is_new), rows in put.items()]
        removed = [
            bulk.removing(self.connection, table_of(kind), self.journal, keys) for kind, keys in gone.items()
        ]
        return written, removed


def columns_of(kind: type[Row]) -> list[Column[Any]]:
    """Return the columns of a row's fields, in the order of the fields."""
    table = table_of(kind)
    return [table.c[name] for name in _fields(kind)]


def row_of(kind: type[R], values: Iterable[Any]) -> R:
    """Return the row of these columns' values.

    Raises:
        MalformedJournalError: One is such as no entry gives; the message names the row.
    """
    row = dict(zip(_fields(kind), values, strict=True))
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        name = "/".join(str(row[column]) for column in kind.KEY)
        raise MalformedJournalError(
            f"{kind.TABLE} {name} cannot be read: {error}; restore the journal: `lockgate journal restore`"
        ) from None


@cache
def _fields(kind: type[Row]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))
