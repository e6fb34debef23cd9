"""Rows in a temporary database, to compare any number of them in little memory.

It contains two sets: the rows that entries fold into, and the rows to compare with them. SQLite keeps them
in an unnamed temporary file (`TMPDIR`) that disappears with the process.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Select, and_, create_engine, delete, event, null, or_, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import NullPool

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal.checkpoint.replay import load
from lockgate.storage_core.journal.database.row_access import SqlRows, columns_of, row_of
from lockgate.storage_core.journal.database.schema import HOLDER, table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.state import Row

CACHE_KIB: Final = 16 * 1024
"""Memory for pages; the rest is on disk."""

_FOLDED: Final = "folded"
_FOUND: Final = "found"
_FETCH: Final = 1000


class Difference(NamedTuple):
    """A row that was found, and the folded row of the same key; None where it does not exist."""

    found: Row | None
    folded: Row | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{_name(self.folded)} is missing, and entries made it"
        if self.folded is None:
            return f"{_name(self.found)} is there, and no entry made it"
        column = next(
            name
            for name in _compared(type(self.found))
            if getattr(self.found, name) != getattr(self.folded, name)
        )
        found, folded = getattr(self.found, column), getattr(self.folded, column)
        return f"{_name(self.found)}: {column} is {found!r}, and entries give {folded!r}"


class TempDatabase:
    """Rows that entries fold into, and their differences from other rows.

    Attributes:
        folded: The rows that entries fold into, empty at first.
    """

    def __init__(self, connection: Connection) -> None:
        self.folded = SqlRows(connection, _FOLDED)
        self._found = SqlRows(connection, _FOUND)
        self._connection = connection

    def clear(self) -> None:
        """Delete the folded rows."""
        self._empty(self.folded)

    def differences(self, found: Iterable[Row]) -> Iterator[Difference]:
        """Yield the differences of rows, by table: first rows that differ or were added, then missing ones.

        Columns that no entry sets (`Row.SOFT`) are not compared.
        """
        self._empty(self._found)
        load(self._found, found)
        for kind in known_families().rows:
            count = len(columns_of(kind))
            for values in self._fetched(_differing(kind)):
                folded = None if values[count] is None else row_of(kind, values[count:])
                yield Difference(row_of(kind, values[:count]), folded)
            for values in self._fetched(_missing(kind)):
                yield Difference(None, row_of(kind, values))

    def _empty(self, rows: SqlRows) -> None:
        for kind in known_families().rows:
            table = table_of(kind)
            self._connection.execute(delete(table).where(table.c.journal == rows.journal))

    def _fetched(self, query: Select[Any]) -> Iterator[Any]:
        with self._connection.execute(query.execution_options(yield_per=_FETCH)) as found:
            yield from found


@contextmanager
def temp_database() -> Iterator[TempDatabase]:
    """Yield a temporary database.

    Raises:
        JournalUnavailableError: The disk is full.
    """
    engine = create_engine("sqlite+pysqlite://", creator=_connect, poolclass=NullPool)
    event.listen(engine, "handle_error", _explain)
    with engine.connect() as connection:
        for kind in known_families().rows:
            table_of(kind).create(connection)
        HOLDER.create(connection)  # empty: replayed leases have no renewals
        yield TempDatabase(connection)


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect("")
    for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
        connection.execute(f"PRAGMA {pragma}").close()
    return connection


def _explain(context: ExceptionContext) -> None:
    error = context.original_exception
    raise JournalUnavailableError(
        f"the temporary database in {tempfile.gettempdir()}: {error}; nothing was changed; free space there, "
        "or name another directory in TMPDIR"
    ) from error


def _differing(kind: type[Row]) -> Select[Any]:
    """Select the found rows that differ from the folded ones, each with the folded row."""
    table = table_of(kind)
    found, folded = table.alias(_FOUND), table.alias(_FOLDED)
    return (
        select(*(side.c[at.name] for side in (found, folded) for at in columns_of(kind)))
        .select_from(found.outerjoin(folded, _is_same(kind, found, folded, _FOLDED)))
        .where(
            found.c.journal == _FOUND,
            or_(
                folded.c.journal == null(),
                *(found.c[name].is_distinct_from(folded.c[name]) for name in _compared(kind)),
            ),
        )
        .order_by(*(found.c[name] for name in kind.KEY))
    )


def _missing(kind: type[Row]) -> Select[Any]:
    """Select the folded rows that were not found."""
    table = table_of(kind)
    found, folded = table.alias(_FOUND), table.alias(_FOLDED)
    return (
        select(*(folded.c[at.name] for at in columns_of(kind)))
        .select_from(folded.outerjoin(found, _is_same(kind, folded, found, _FOUND)))
        .where(folded.c.journal == _FOLDED, found.c.journal == null())
        .order_by(*(folded.c[name] for name in kind.KEY))
    )


def _compared(kind: type[Row]) -> list[str]:
    """Return the columns that entries set, without the key."""
    outside = {*kind.KEY, *kind.SOFT}
    return [at.name for at in columns_of(kind) if at.name not in outside]


def _is_same(kind: type[Row], one: Any, other: Any, others: str) -> Any:
    return and_(other.c.journal == others, *(one.c[name] == other.c[name] for name in kind.KEY))


def _name(row: Row | None) -> str:
    return "" if row is None else f"{row.TABLE} {'/'.join(str(part) for part in row.key)}"
