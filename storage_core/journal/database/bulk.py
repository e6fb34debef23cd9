"""Read and write many rows in one statement. Each statement is built and compiled once.

Keys are sent as one JSON parameter, and on PostgreSQL so are rows: one statement for each row would cost the
server more than the row, and arrays cost the client a step for each value. Many new rows are sent with COPY,
which costs the server half as much as JSON. SQLite runs one prepared statement over the rows; it gets no
number as JSON, because it does not read every number back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Delete,
    FromClause,
    Select,
    Table,
    TableValuedAlias,
    Text,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects import sqlite

from lockgate.storage_core.journal.database.pipeline import Statement, copy_in, execute_pipelined, is_sqlite
from lockgate.storage_core.journal.database.schema import insert_into, read_columns

_BuildInsert = Callable[[Table, bool], Any]
Query = Select[Any] | CompoundSelect[Any]

_encode: Final = msgspec.json.Encoder().encode

JOURNAL: Final = "of_journal"
"""Parameter with the journal's name."""

_GIVEN: Final = "given"

MANY: Final = 32
"""Use binary COPY from this many new rows on; below it, pipelined inserts are cheaper."""


class Change(msgspec.Struct, frozen=True):
    """Rows to write to one table.

    Attributes:
        table: Table of the rows.
        rows: Structs whose fields are the columns after `journal`, in order.
        are_new: Whether no row with one of these keys exists.
    """

    table: Table
    rows: Sequence[msgspec.Struct]
    are_new: bool


def select_by_key(
    connection: Connection, table: Table, journal: str, keys: Sequence[tuple[Any, ...]]
) -> Statement:
    """Return the statement that selects the rows with these keys, without the column `journal`."""
    given = parameters(journal, _keys(table), keys)
    return Statement(_find(table, is_sqlite(connection)), given, keeps_plan=_has_one_index(table))


def select_by_columns(
    connection: Connection,
    table: Table,
    journal: str,
    by: tuple[str, ...],
    values: Sequence[tuple[Any, ...]],
) -> Statement:
    """Return the statement that selects rows by columns that begin an index, without `journal`."""
    given = parameters(journal, [table.c[name] for name in by], values)
    return Statement(_find_in(table, by, is_sqlite(connection)), given, keeps_plan=_has_one_index(table))


def delete_by_key(
    connection: Connection, table: Table, journal: str, keys: Sequence[tuple[Any, ...]]
) -> Statement:
    """Return the statement that deletes the rows with these keys."""
    given = parameters(journal, _keys(table), keys)
    return Statement(_remove(table, is_sqlite(connection)), given, keeps_plan=False)


def store(
    connection: Connection, journal: str, changes: Sequence[Change], others: Sequence[Statement]
) -> None:
    """Write rows, and execute other statements with them."""
    statements = list[Statement]()
    for change in changes:
        if is_sqlite(connection):
            values = [(journal, *msgspec.structs.astuple(row)) for row in change.rows]
            connection.exec_driver_sql(_sqlite_text(_written_by(change), change.table), values)
        elif change.are_new and len(change.rows) >= MANY:
            copy_in(connection, change.table, journal, change.rows)
        else:
            rows = {JOURNAL: journal, _GIVEN: _encode(change.rows).decode()}
            statements.append(Statement(_written_by(change)(change.table, False), rows))
    execute_pipelined(connection, [*statements, *others])


def matching(columns: Sequence[Sequence[Column[Any]]], by: Sequence[str], for_sqlite: bool) -> Query:
    """Return a query for the rows whose columns have the values in the parameter `given`."""
    given = given_in([columns[0][0].table.c[name] for name in by], for_sqlite).subquery()
    if for_sqlite:
        # In the order of a LEFT JOIN the index finds each value. For `IN`, SQLite may use the first column of
        # a key alone, and read all rows that share it. LIMIT keeps the condition outside the join.
        joined = _union([_beside(given, chosen, by) for chosen in columns])
        every = joined.limit(literal_column("-1")).subquery()
        return select(*every.c).where(next(iter(every.c)).is_not(None))
    found = _union(
        [
            select(*chosen).where(
                _of_journal(chosen), *(chosen[0].table.c[name] == given.c[name] for name in by)
            )
            for chosen in columns
        ]
    )
    # OFFSET 0 makes PostgreSQL look up each value by the index, instead of a join that may read the whole
    # table.
    each = found.offset(literal_column("0")).lateral()
    return select(*each.c).select_from(given.join(each, true()))


def _beside(given: FromClause, chosen: Sequence[Column[Any]], by: Sequence[str]) -> Select[Any]:
    """Return the query for the row of each value, or NULLs."""
    table = chosen[0].table
    same = and_(_of_journal(chosen), *(table.c[name] == given.c[name] for name in by))
    return select(*chosen).select_from(given.outerjoin(table, same))


def parameters(journal: str, by: Sequence[Column[Any]], keys: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    """Return the parameters of a statement that looks up rows."""
    names = [at.name for at in by]
    given = [dict(zip(names, key, strict=True)) for key in keys]
    return {JOURNAL: journal, _GIVEN: _encode(given).decode()}


def _union(queries: Sequence[Select[Any]]) -> Any:
    return queries[0] if len(queries) == 1 else union_all(*queries)


def _of_journal(columns: Sequence[Column[Any]]) -> ColumnElement[bool]:
    return columns[0].table.c.journal == bindparam(JOURNAL)


def _keys(table: Table) -> list[Column[Any]]:
    return [at for at in table.primary_key if at.name != "journal"]


def _rest(table: Table) -> list[Column[Any]]:
    return [at for at in table.columns if at.name != "journal"]


def _has_one_index(table: Table) -> bool:
    """Return whether the primary key is the table's only index."""
    # While a table is small, PostgreSQL may choose any index that begins with the journal, and a cached plan
    # would then keep reading the whole journal with it.
    return not table.indexes


def given_in(columns: Sequence[Column[Any]], for_sqlite: bool) -> Select[Any]:
    """Return a query for the objects of the JSON list in the parameter `given`, as rows of these columns."""
    text = bindparam(_GIVEN, type_=Text)
    if for_sqlite:
        each = func.json_each(text).table_valued("value")
        values = [func.json_extract(each.c.value, f"$.{at.name}") for at in columns]
        typed = zip(values, columns, strict=True)
        return select(*(cast(value, at.type).label(at.name) for value, at in typed))
    return select(*_recordset(columns).columns)


def _recordset(columns: Sequence[Column[Any]]) -> TableValuedAlias:
    """Return the parameter `given` as rows of these columns, on PostgreSQL."""
    text = cast(bindparam(_GIVEN, type_=Text), JSON)
    named = [column(at.name, at.type) for at in columns]
    return func.json_to_recordset(text).table_valued(*named).render_derived(with_types=True)


@cache
def _find(table: Table, for_sqlite: bool) -> Query:
    return matching([read_columns(table)], [at.name for at in _keys(table)], for_sqlite)


@cache
def _find_in(table: Table, by: tuple[str, ...], for_sqlite: bool) -> Query:
    return matching([read_columns(table)], by, for_sqlite)


@cache
def _remove(table: Table, for_sqlite: bool) -> Delete:
    keys = _keys(table)
    if for_sqlite:  # as in `matching`; what has no row is NULL, which `IN` ignores
        rowid: Any = literal_column(f"{table.name}.rowid", BigInteger)
        given = given_in(keys, for_sqlite).subquery()
        beside = _beside(given, keys, [at.name for at in keys])
        return delete(table).where(rowid.in_(beside.with_only_columns(rowid)))
    wanted = tuple_(*keys).in_(given_in(keys, for_sqlite))
    return delete(table).where(table.c.journal == bindparam(JOURNAL), wanted)


def _written_by(change: Change) -> _BuildInsert:
    return _add if change.are_new else _put


@cache
def _add(table: Table, for_sqlite: bool) -> Any:
    statement = insert_into(table, for_sqlite)
    if for_sqlite:
        return statement
    rows = _recordset(_rest(table))
    return statement.from_select(
        [at.name for at in table.columns], select(bindparam(JOURNAL, type_=Text), *rows.columns)
    )


@cache
def _put(table: Table, for_sqlite: bool) -> Any:
    statement = _add(table, for_sqlite)
    rest = [at.name for at in table.columns if not at.primary_key]
    if not rest:  # a row that is its key, as a block's member is, has nothing to change
        return statement.on_conflict_do_nothing()
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: statement.excluded[name] for name in rest}
    )


@cache
def _sqlite_text(statement: _BuildInsert, table: Table) -> str:
    return str(statement(table, True).compile(dialect=sqlite.dialect()))
