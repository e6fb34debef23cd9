"""Many rows in one statement, on either database. Each statement is built once, and then compiled once.

What is looked for goes to the database as one JSON parameter, however much it is; so do, on PostgreSQL, the
rows to write: a statement a row costs its server more than the row does, and arrays cost the client a step a
value. SQLite, which lives in this process, runs one prepared statement over the rows; no number goes to it as
JSON, for it does not read every one back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

_Insert = PostgresqlInsert | SqliteInsert
_Statement = Callable[[Table, bool], _Insert]

_encode: Final = msgspec.json.Encoder().encode

JOURNAL: Final = "of_journal"
"""The parameter that names the journal."""

_GIVEN: Final = "given"


def find(
    connection: Connection, table: Table, journal: str, keys: Sequence[tuple[Any, ...]], *, lock: bool
) -> Sequence[Any]:
    """Return the rows of a journal with these keys, without the column `journal`.

    Args:
        connection: Its transaction has begun.
        table: Where to look.
        journal: Name of the journal.
        keys: Values of the primary key's other columns.
        lock: Let nobody else change them before the transaction ends.
    """
    statement = _find(table, is_sqlite(connection), lock)
    # In order, so that two who lock the same rows do not wait for each other.
    return connection.execute(statement, parameters(journal, sorted(keys))).all()


def remove(connection: Connection, table: Table, journal: str, keys: Sequence[tuple[Any, ...]]) -> None:
    """Delete the rows of a journal with these keys."""
    connection.execute(_remove(table, is_sqlite(connection)), parameters(journal, keys))


def add(connection: Connection, table: Table, journal: str, rows: Sequence[msgspec.Struct]) -> None:
    """Insert rows that are not there: their fields are the columns after `journal`, in the same order."""
    _write(connection, _add, table, journal, rows)


def put(connection: Connection, table: Table, journal: str, rows: Sequence[msgspec.Struct]) -> None:
    """Insert rows, or take the place of those with their keys."""
    _write(connection, _put, table, journal, rows)


def matching(
    columns: Sequence[Column[Any]], by: Sequence[Column[Any]], for_sqlite: bool, *, lock: bool = False
) -> Select[Any]:
    """Select the rows of a journal whose columns have the values that stand in the parameter `given`.

    Args:
        columns: To select, all of one table.
        by: To compare, of an index of that table.
        for_sqlite: What the statement is for.
        lock: Let nobody else change the rows before the transaction ends.
    """
    of_journal = by[0].table.c.journal == bindparam(JOURNAL)
    if for_sqlite:
        return select(*columns).where(of_journal, tuple_(*by).in_(_given_in(by, for_sqlite)))
    asked = _given_in(by, for_sqlite).subquery()
    # Each value is looked for by itself, by its index: the offset keeps PostgreSQL from making a join of it,
    # which may read the whole table.
    found = (
        select(*columns).where(of_journal, *(at == asked.c[at.name] for at in by)).offset(literal_column("0"))
    )
    one = (found.with_for_update() if lock else found).lateral()
    return select(*one.c).select_from(asked.join(one, true()))


def parameters(journal: str, given: Sequence[Any]) -> dict[str, str]:
    """Return a statement's parameters.

    Args:
        journal: Name of the journal.
        given: A list of values for each row that is looked for, or the rows to write.
    """
    return {JOURNAL: journal, _GIVEN: _encode(given).decode()}


def is_sqlite(connection: Connection) -> bool:
    """Tell what a statement is for."""
    return connection.dialect.name == "sqlite"


def _write(
    connection: Connection,
    statement: _Statement,
    table: Table,
    journal: str,
    rows: Sequence[msgspec.Struct],
) -> None:
    if is_sqlite(connection):
        values = [(journal, *msgspec.structs.astuple(row)) for row in rows]
        connection.exec_driver_sql(_sqlite_text(statement, table), values)
    else:
        connection.execute(statement(table, False), parameters(journal, rows))


def _keys(table: Table) -> list[Column[Any]]:
    return [at for at in table.primary_key if at.name != "journal"]


def _rest(table: Table) -> list[Column[Any]]:
    return [at for at in table.columns if at.name != "journal"]


def _given_in(columns: Sequence[Column[Any]], for_sqlite: bool) -> Select[Any]:
    """Select what stands in the parameter `given`, a list of lists in JSON, as values of these columns."""
    text = bindparam(_GIVEN, type_=Text)
    if for_sqlite:
        each = func.json_each(text).table_valued("value")
        values: list[ColumnElement[Any]] = [
            func.json_extract(each.c.value, f"$[{place}]") for place in range(len(columns))
        ]
    else:
        each = func.json_array_elements(cast(text, JSON)).table_valued("value")
        values = [each.c.value.op("->>")(literal_column(str(place))) for place in range(len(columns))]
    return select(*(cast(value, at.type).label(at.name) for value, at in zip(values, columns, strict=True)))


@cache
def _find(table: Table, for_sqlite: bool, lock: bool) -> Select[Any]:
    return matching(_rest(table), _keys(table), for_sqlite, lock=lock)


@cache
def _remove(table: Table, for_sqlite: bool) -> Delete:
    keys = _keys(table)
    wanted = tuple_(*keys).in_(_given_in(keys, for_sqlite))
    return delete(table).where(table.c.journal == bindparam(JOURNAL), wanted)


@cache
def _add(table: Table, for_sqlite: bool) -> _Insert:
    if for_sqlite:
        return SqliteInsert(table)
    rest = [column(at.name, at.type) for at in _rest(table)]
    text = cast(bindparam(_GIVEN, type_=Text), JSON)
    rows = func.json_to_recordset(text).table_valued(*rest).render_derived(with_types=True)
    return PostgresqlInsert(table).from_select(
        [at.name for at in table.columns], select(bindparam(JOURNAL, type_=Text), *rows.columns)
    )


@cache
def _put(table: Table, for_sqlite: bool) -> _Insert:
    statement = _add(table, for_sqlite)
    rest = [at.name for at in table.columns if not at.primary_key]
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: statement.excluded[name] for name in rest}
    )


@cache
def _sqlite_text(statement: _Statement, table: Table) -> str:
    return str(statement(table, True).compile(dialect=sqlite.dialect()))
