"""Statements that go to the database together: PostgreSQL takes them in one message and answers in one.

A write asks for what it must know at once, and says what it changes at once: a round trip each, where a
statement a trip would take nine. Each statement still sees what was committed before it began: what is asked
after the lock of the head is read after it. SQLite lives in this process and has no trips to save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import msgspec
import psycopg
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

Row = tuple[Any, ...]
Statement = Select[Any] | CompoundSelect[Any] | Insert | Update | Delete

PLANS_KEPT: Final = tuple(
    literal_column(f"set_config('{name}', '{value}', true)", Text)
    for name, value in (("plan_cache_mode", "force_generic_plan"), ("enable_seqscan", "off"))
)
"""Selected, they let PostgreSQL plan a statement once for all transactions that select them, not in each.

A plan that was made while a table was small would read it whole for ever, once it is kept: so none may.
"""

_UNSEEN: Final = ""
"""The statement of a driver's error: it may show what was asked for."""


class Question(msgspec.Struct, frozen=True):
    """One statement. It is built once, with `bindparam`s for all that changes, for it is compiled once.

    Attributes:
        statement: What to run.
        parameters: By name.
        keeps_plan: Whether one plan suits it however its tables grow, so that it is prepared.
    """

    statement: Statement
    parameters: Mapping[str, Any]
    keeps_plan: bool = True


def ask(connection: Connection, questions: Sequence[Question]) -> list[Sequence[Row]]:
    """Run statements in their order; returns the rows that each gave.

    Raises:
        DBAPIError: What the first that failed said; those after it had no effect.
    """
    if is_sqlite(connection):
        return [_rows(connection, question) for question in questions]
    with _driver(connection) as driver:
        cursors = [driver.cursor() for _ in questions]
        with driver.pipeline():
            for cursor, question in zip(cursors, questions, strict=True):
                text = _text(question.statement, connection.dialect)
                cursor.execute(text, question.parameters, prepare=question.keeps_plan)
        return [cursor.fetchall() if _has_rows(cursor) else () for cursor in cursors]


def copy_in(connection: Connection, table: Table, journal: str, rows: Sequence[msgspec.Struct]) -> None:
    """Copy rows that are not there into a table of PostgreSQL, in the driver's binary form.

    Args:
        connection: Its transaction has begun.
        table: Where they go.
        journal: Name of the journal.
        rows: Their fields are the columns after `journal`, in the same order.
    """
    statement, types = _copy(table, connection.dialect)
    with _driver(connection) as driver, driver.cursor().copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row((journal, *msgspec.structs.astuple(row)))


def is_sqlite(connection: Connection) -> bool:
    """Tell what a statement is for."""
    return connection.dialect.name == "sqlite"


def _rows(connection: Connection, question: Question) -> Sequence[Row]:
    result = connection.execute(question.statement, question.parameters)
    return [tuple(row) for row in result] if result.returns_rows else ()


def _has_rows(cursor: psycopg.Cursor[Row]) -> bool:
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0  # `description` tells of every column


@contextmanager
def _driver(connection: Connection) -> Iterator[psycopg.Connection[Row]]:
    """Lend the driver's connection; its errors come out as SQLAlchemy's."""
    driver: Any = connection.connection.driver_connection
    try:
        yield driver
    except psycopg.Error as error:
        is_lost = driver.closed
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            _UNSEEN,
            None,
            error,
            psycopg.Error,
            hide_parameters=True,
            connection_invalidated=is_lost,
            dialect=connection.dialect,
        ) from error


@cache
def _text(statement: Statement, dialect: Dialect) -> bytes:
    return str(statement.compile(dialect=dialect)).encode()


@cache
def _copy(table: Table, dialect: Dialect) -> tuple[bytes, list[str]]:
    """Return the statement that copies into a table, and its columns' types."""
    quoted = dialect.identifier_preparer
    columns = ", ".join(quoted.format_column(column) for column in table.columns)
    statement = f"COPY {quoted.format_table(table)} ({columns}) FROM STDIN (FORMAT BINARY)"
    return statement.encode(), [column.type.compile(dialect).lower() for column in table.columns]
