"""Many rows in one statement, on either database. Each statement is built once, and then compiled once.

What is looked for goes to the database as one JSON parameter, however much it is; so do, on PostgreSQL, the
rows to write: a statement a row costs its server more than the row does, and arrays cost the client a step a
value. Many new rows are copied there, for half of what JSON costs the server. SQLite, which lives in this
process, runs one prepared statement over the rows; no number goes to it as JSON, for it does not read every
one back exactly.
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
    CompoundSelect,
    Connection,
    Delete,
    Select,
    Table,
    TableValuedAlias,
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
    union_all,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

from lockgate.storage_core.journal.database.pipeline import Question, ask, copy_in, is_sqlite

_Insert = PostgresqlInsert | SqliteInsert
_Statement = Callable[[Table, bool], _Insert]
Query = Select[Any] | CompoundSelect[Any]

_encode: Final = msgspec.json.Encoder().encode

JOURNAL: Final = "of_journal"
"""The parameter that names the journal."""

_GIVEN: Final = "given"

MANY: Final = 32
"""From so many new rows on they are copied; fewer cost less with the statements that go together."""


class Change(msgspec.Struct, frozen=True):
    """Rows of one table to be written.

    Attributes:
        table: Theirs.
        rows: Their fields are the columns after `journal`, in the same order.
        are_new: No row with one of their keys is there.
    """

    table: Table
    rows: Sequence[msgspec.Struct]
    are_new: bool


def looking_for(
    connection: Connection, table: Table, journal: str, keys: Sequence[tuple[Any, ...]], *, lock: bool
) -> Question:
    """Ask for the rows of a journal with these keys, without the column `journal`.

    Args:
        connection: Will ask it.
        table: Where to look.
        journal: Name of the journal.
        keys: Values of the primary key's other columns.
        lock: Let nobody else change them before the transaction ends.
    """
    # In order, so that two who lock the same rows do not wait for each other.
    given = parameters(journal, _keys(table), sorted(keys))
    return Question(_find(table, is_sqlite(connection), lock), given, keeps_plan=_has_one_index(table))


def looking_in(
    connection: Connection,
    table: Table,
    journal: str,
    key: Sequence[str],
    beginnings: Sequence[tuple[Any, ...]],
) -> Question:
    """Ask for the rows of a journal whose keys begin so, without the column `journal`.

    Args:
        connection: Will ask it.
        table: Where to look.
        journal: Name of the journal.
        key: The primary key's other columns.
        beginnings: Values of the first of them, all equally many.
    """
    by = tuple(key[: len(beginnings[0])])
    given = parameters(journal, [table.c[name] for name in by], beginnings)
    return Question(_find_in(table, by, is_sqlite(connection)), given, keeps_plan=_has_one_index(table))


def removing(connection: Connection, table: Table, journal: str, keys: Sequence[tuple[Any, ...]]) -> Question:
    """Delete the rows of a journal with these keys."""
    given = parameters(journal, _keys(table), keys)
    return Question(_remove(table, is_sqlite(connection)), given, keeps_plan=False)


def store(
    connection: Connection, journal: str, changes: Sequence[Change], questions: Sequence[Question]
) -> None:
    """Write rows, and run what else changes them.

    Args:
        connection: Its transaction has begun.
        journal: Name of the journal.
        changes: What to write, no row twice.
        questions: Of other rows than those.
    """
    asked = list[Question]()
    for change in changes:
        if is_sqlite(connection):
            values = [(journal, *msgspec.structs.astuple(row)) for row in change.rows]
            connection.exec_driver_sql(_sqlite_text(_written_by(change), change.table), values)
        elif change.are_new and len(change.rows) >= MANY:
            copy_in(connection, change.table, journal, change.rows)
        else:
            rows = {JOURNAL: journal, _GIVEN: _encode(change.rows).decode()}
            asked.append(Question(_written_by(change)(change.table, False), rows))
    ask(connection, [*asked, *questions])


def matching(
    columns: Sequence[Sequence[Column[Any]]], by: Sequence[str], for_sqlite: bool, *, lock: bool = False
) -> Query:
    """Select the rows of a journal whose columns have the values that stand in the parameter `given`.

    Args:
        columns: To select, of each table in which to look.
        by: Names of the columns to compare, which an index of each table begins with, after the journal.
        for_sqlite: What the statement is for.
        lock: Let nobody else change the rows before the transaction ends.
    """
    compared = [columns[0][0].table.c[name] for name in by]
    if for_sqlite:
        wanted = _given_in(compared, for_sqlite)
        query: Query = _joined(
            [
                select(*of).where(_of_journal(of), tuple_(*(of[0].table.c[name] for name in by)).in_(wanted))
                for of in columns
            ]
        )
        return query
    asked = _given_in(compared, for_sqlite).subquery()
    found = _joined(
        [
            select(*of).where(_of_journal(of), *(of[0].table.c[name] == asked.c[name] for name in by))
            for of in columns
        ]
    )
    # Each value is looked for by itself, by its index: the offset keeps PostgreSQL from making a join of it,
    # which may read the whole table.
    found = found.offset(literal_column("0"))
    one = (found.with_for_update() if lock else found).lateral()
    return select(*one.c).select_from(asked.join(one, true()))


def parameters(journal: str, by: Sequence[Column[Any]], keys: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    """Return the parameters of what looks for rows.

    Args:
        journal: Name of the journal.
        by: The columns that are compared.
        keys: Their values, for each row that is looked for.
    """
    names = [at.name for at in by]
    given = [dict(zip(names, key, strict=True)) for key in keys]
    return {JOURNAL: journal, _GIVEN: _encode(given).decode()}


def _joined(queries: Sequence[Select[Any]]) -> Any:
    return queries[0] if len(queries) == 1 else union_all(*queries)


def _of_journal(columns: Sequence[Column[Any]]) -> ColumnElement[bool]:
    return columns[0].table.c.journal == bindparam(JOURNAL)


def _keys(table: Table) -> list[Column[Any]]:
    return [at for at in table.primary_key if at.name != "journal"]


def _rest(table: Table) -> list[Column[Any]]:
    return [at for at in table.columns if at.name != "journal"]


def _has_one_index(table: Table) -> bool:
    """Tell whether rows can be looked for by their key only.

    While a table is small, any index that begins with the journal looks as good as the key's, and a plan that
    is kept would go on to read the whole journal by it.
    """
    return not table.indexes


def _given_in(columns: Sequence[Column[Any]], for_sqlite: bool) -> Select[Any]:
    """Select what stands in the parameter `given`, a list of objects in JSON, as values of these columns."""
    text = bindparam(_GIVEN, type_=Text)
    if for_sqlite:
        each = func.json_each(text).table_valued("value")
        values = [func.json_extract(each.c.value, f"$.{at.name}") for at in columns]
        return select(*(cast(one, at.type).label(at.name) for one, at in zip(values, columns, strict=True)))
    return select(*_recordset(columns).columns)


def _recordset(columns: Sequence[Column[Any]]) -> TableValuedAlias:
    """Read the parameter `given` as rows of these columns, on PostgreSQL."""
    text = cast(bindparam(_GIVEN, type_=Text), JSON)
    named = [column(at.name, at.type) for at in columns]
    return func.json_to_recordset(text).table_valued(*named).render_derived(with_types=True)


@cache
def _find(table: Table, for_sqlite: bool, lock: bool) -> Query:
    return matching([_rest(table)], [at.name for at in _keys(table)], for_sqlite, lock=lock)


@cache
def _find_in(table: Table, by: tuple[str, ...], for_sqlite: bool) -> Query:
    return matching([_rest(table)], by, for_sqlite)


@cache
def _remove(table: Table, for_sqlite: bool) -> Delete:
    keys = _keys(table)
    wanted = tuple_(*keys).in_(_given_in(keys, for_sqlite))
    return delete(table).where(table.c.journal == bindparam(JOURNAL), wanted)


def _written_by(change: Change) -> _Statement:
    return _add if change.are_new else _put


@cache
def _add(table: Table, for_sqlite: bool) -> _Insert:
    if for_sqlite:
        return SqliteInsert(table)
    rows = _recordset(_rest(table))
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
