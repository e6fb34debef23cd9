"""Rows beside a journal, in a temporary database of their own: however many, in little memory.

Two sets of them: what entries fold into, and what is compared with that. SQLite keeps them in a file that has
no name, where temporary files lie (`TMPDIR`), and that goes with the process.
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
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.rows import Lease, Row

CACHE_KIB: Final = 16 * 1024
"""So much of it is in memory; the rest is on disk."""

_FOLDED: Final = "folded"
_FOUND: Final = "found"
_FETCH: Final = 1000


class Difference(NamedTuple):
    """A row that is not what entries give, and what they give; None where one of them is not there."""

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


class Scratch:
    """Rows that entries fold into, and what differs from them.

    Attributes:
        folded: Those rows, empty at first.
    """

    def __init__(self, connection: Connection) -> None:
        self.folded = SqlRows(connection, _FOLDED)
        self._found = SqlRows(connection, _FOUND)
        self._connection = connection

    def clear(self) -> None:
        """Begin with no row again."""
        self._empty(self.folded)

    def differences(self, found: Iterable[Row]) -> Iterator[Difference]:
        """Yield, table by table, what differs in a set of rows: first what it has, then what it lacks.

        When a lease was renewed is not compared: it is the one field outside the fold.
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

    def _fetched(self, question: Select[Any]) -> Iterator[Any]:
        with self._connection.execute(question.execution_options(yield_per=_FETCH)) as found:
            yield from found


@contextmanager
def scratch() -> Iterator[Scratch]:
    """Hold a temporary database.

    Raises:
        JournalUnavailableError: It has no room on its disk.
    """
    engine = create_engine("sqlite+pysqlite://", creator=_connect, poolclass=NullPool)
    event.listen(engine, "handle_error", _explain)
    with engine.connect() as connection:
        for kind in known_families().rows:
            table_of(kind).create(connection)
        yield Scratch(connection)


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
    """Select the rows that were found and that entries do not give so, each with what they give."""
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
    """Select the rows that entries give and that were not found."""
    table = table_of(kind)
    found, folded = table.alias(_FOUND), table.alias(_FOLDED)
    return (
        select(*(folded.c[at.name] for at in columns_of(kind)))
        .select_from(folded.outerjoin(found, _is_same(kind, folded, found, _FOUND)))
        .where(folded.c.journal == _FOLDED, found.c.journal == null())
        .order_by(*(folded.c[name] for name in kind.KEY))
    )


def _compared(kind: type[Row]) -> list[str]:
    """Return the columns beside the key that entries set."""
    outside = {*kind.KEY, *(["renewed_s"] if kind is Lease else [])}
    return [at.name for at in columns_of(kind) if at.name not in outside]


def _is_same(kind: type[Row], one: Any, other: Any, others: str) -> Any:
    return and_(other.c.journal == others, *(one.c[name] == other.c[name] for name in kind.KEY))


def _name(row: Row | None) -> str:
    return "" if row is None else f"{row.TABLE} {'/'.join(str(part) for part in row.key)}"
