"""Follow a path of rows, as of directories, with one statement: it looks up one index entry for each name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    CTE,
    JSON,
    ColumnElement,
    FromClause,
    Join,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    func,
    literal_column,
    null,
    select,
    true,
)

from lockgate.storage_core.journal.database.bulk import JOURNAL
from lockgate.storage_core.journal.database.schema import read_columns, table_of
from lockgate.storage_core.journal.entries.state import Row

R = TypeVar("R", bound=Row)
S = TypeVar("S", bound=Row)

_NAMES: Final = "names"
_encode: Final = msgspec.json.Encoder().encode


class Tree(NamedTuple, Generic[R, S]):
    """Rows that form a tree.

    Attributes:
        kind: Kind of the rows. Their keys have two columns: the `link` of the row above, and a name.
        link: Column with a number that the keys of the rows below begin with.
        root: That number at the root, which has no row.
        beside: Kind of row that each may have beside it, whose key is the `link`.
    """

    kind: type[R]
    link: str
    root: int
    beside: type[S]


def parameters(journal: str, tree: Tree[Any, Any], names: Sequence[str], **others: Any) -> dict[str, Any]:
    """Return the parameters of a query; `below_path` also needs `after` and `limit`."""
    given = {JOURNAL: journal, _NAMES: _encode(names).decode(), "root": tree.root}
    return {**given, "depth": len(names), **others} if others else given


@cache
def on_path(tree: Tree[Any, Any], for_sqlite: bool) -> Select[Any]:
    """Return the query for the rows of a path, in order, each with the row beside it."""
    path = _path(tree, for_sqlite)
    rows, beside = _beside(path, table_of(tree.beside), {tree.link: path.c[tree.link]}, for_sqlite)
    return (
        select(*(path.c[at.name] for at in read_columns(table_of(tree.kind))), *beside)
        .select_from(rows)
        .where(path.c.depth_ > literal_column("0"), path.c[tree.link].is_not(None))
        .order_by(path.c.depth_)
    )


@cache
def below_path(tree: Tree[Any, Any], for_sqlite: bool) -> Select[Any]:
    """Return the query for a page of the rows below the end of a path, by name, with those beside them."""
    path, kind = _path(tree, for_sqlite), table_of(tree.kind)
    above, name = (kind.c[column] for column in tree.kind.KEY)
    rows, beside = _beside(kind, table_of(tree.beside), {tree.link: kind.c[tree.link]}, for_sqlite)
    end = select(path.c[tree.link]).where(path.c.depth_ == bindparam("depth")).scalar_subquery()
    return (
        select(*read_columns(kind), *beside)
        .select_from(rows)
        .where(kind.c.journal == bindparam(JOURNAL), above == end, name > bindparam("after"))
        .order_by(name)
        .limit(bindparam("limit"))
    )


def _path(tree: Tree[Any, Any], for_sqlite: bool) -> CTE:
    """Return the path by depth: the root, then its rows, then one of NULLs where a name is missing."""
    columns, names = read_columns(table_of(tree.kind)), bindparam(_NAMES, type_=Text)
    root = [bindparam("root") if at.name == tree.link else null() for at in columns]
    typed = (cast(value, at.type).label(at.name) for value, at in zip(root, columns, strict=True))
    path = select(literal_column("0").label("depth_"), *typed).cte("path_", recursive=True)
    depth = cast(path.c.depth_, Text)
    wanted = (
        func.json_extract(names, literal_column("'$['") + depth + literal_column("']'"))
        if for_sqlite
        else func.json_extract_path_text(cast(names, JSON), depth)
    )
    key = dict(zip(tree.kind.KEY, (path.c[tree.link], wanted), strict=True))
    rows, found = _beside(path, table_of(tree.kind), key, for_sqlite)
    step = select(path.c.depth_ + literal_column("1"), *found).select_from(rows)
    return path.union_all(step.where(path.c[tree.link].is_not(None)))


def _beside(
    rows: FromClause, table: Table, key: Mapping[str, ColumnElement[Any]], for_sqlite: bool
) -> tuple[Join, Sequence[ColumnElement[Any]]]:
    """Return the join of each row with the one of a key in a table, if it exists, and that one's columns."""
    columns = read_columns(table)
    wanted = and_(table.c.journal == bindparam(JOURNAL), *(table.c[at] == value for at, value in key.items()))
    if for_sqlite:  # it looks up what is on the right of a LEFT JOIN for each row
        return rows.outerjoin(table, wanted), columns
    # OFFSET 0 makes PostgreSQL do the same; it may else read the whole table for a path of two names.
    each = select(*columns).where(wanted).offset(literal_column("0")).lateral()
    return rows.outerjoin(each, true()), [*each.c]
