"""Execute several statements in one round trip, with PostgreSQL's pipeline mode.

A write needs two round trips, one for all reads and one for all changes, instead of nine. Each statement
still sees what was committed before it began, so statements after the head's lock read the state after it.
SQLite has no round trips to save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import (
    CompoundSelect,
    Connection,
    Delete,
    Dialect,
    Insert,
    Select,
    Table,
    Text,
    Update,
    literal_column,
)
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]
Sql = Select[Any] | CompoundSelect[Any] | Insert | Update | Delete

PLANS_KEPT: Final = tuple(
    literal_column(f"set_config('{name}', '{value}', true)", Text)
    for name, value in (("plan_cache_mode", "force_generic_plan"), ("enable_seqscan", "off"))
)
"""Selected in a transaction, they let PostgreSQL reuse plans of prepared statements.

Sequential scans are disabled, because a plan cached while a table was small would keep reading all of it.
"""

SYNCHRONOUS_COMMIT: Final = (
    "CASE WHEN current_setting('synchronous_commit') = 'off' "
    "THEN set_config('synchronous_commit', 'on', false) END"
)
"""Turns `synchronous_commit` on for the session: with `off` a crash loses acknowledged transactions.

Every role may. Other values are kept, because they only concern standbys.
"""

_HIDDEN: Final = ""
"""Replaces the statement in errors, which may contain values."""


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement with its parameters.

    Attributes:
        sql: Statement, built and compiled once, with `bindparam`s for everything that varies.
        parameters: Values by name.
        keeps_plan: Whether one plan suits tables of any size, so that the statement is prepared.
    """

    sql: Sql
    parameters: Mapping[str, Any]
    keeps_plan: bool = True


def execute_pipelined(connection: Connection, statements: Sequence[Statement]) -> list[Sequence[Row]]:
    """Execute statements in order and return the rows of each.

    Raises:
        DBAPIError: Error of the first statement that failed; those after it had no effect.
    """
    if is_sqlite(connection):
        return [_rows(connection, statement) for statement in statements]
    with _driver(connection) as driver:
        cursors = [driver.cursor() for _ in statements]
        with driver.pipeline():
            for cursor, statement in zip(cursors, statements, strict=True):
                text = _text(statement.sql, connection.dialect)
                cursor.execute(text, statement.parameters, prepare=statement.keeps_plan)
        return [cursor.fetchall() if _has_rows(cursor) else () for cursor in cursors]


def copy_in(connection: Connection, table: Table, journal: str, rows: Sequence[msgspec.Struct]) -> None:
    """Insert new rows into a PostgreSQL table with binary COPY."""
    statement, types = _copy(table, connection.dialect)
    with _driver(connection) as driver, driver.cursor().copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row((journal, *msgspec.structs.astuple(row)))


def is_sqlite(connection: Connection) -> bool:
    """Return whether the connection is to SQLite."""
    return connection.dialect.name == "sqlite"


def _rows(connection: Connection, statement: Statement) -> Sequence[Row]:
    with connection.execute(statement.sql, statement.parameters) as result:
        return result.cursor.fetchall() if result.returns_rows else ()  # SQLAlchemy's rows cost more


def _has_rows(cursor: psycopg.Cursor[Row]) -> bool:
    return (
        cursor.pgresult is not None and cursor.pgresult.nfields > 0
    )  # `description` would build each column


@contextmanager
def _driver(connection: Connection) -> Iterator[psycopg.Connection[Row]]:
    """Yield the driver's connection; raise its errors as SQLAlchemy's."""
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.loaded_dbapi.Error
    try:
        yield driver
    except errors as error:
        is_lost = driver.closed
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            _HIDDEN,
            None,
            error,
            errors,
            hide_parameters=True,
            connection_invalidated=is_lost,
            dialect=connection.dialect,
        ) from error


@cache
def _text(sql: Sql, dialect: Dialect) -> bytes:
    return str(sql.compile(dialect=dialect)).encode()


@cache
def _copy(table: Table, dialect: Dialect) -> tuple[bytes, list[str]]:
    """Return a table's COPY statement and the types of its columns."""
    quoted = dialect.identifier_preparer
    columns = ", ".join(quoted.format_column(column) for column in table.columns)
    statement = f"COPY {quoted.format_table(table)} ({columns}) FROM STDIN (FORMAT BINARY)"
    return statement.encode(), [column.type.compile(dialect).lower() for column in table.columns]
