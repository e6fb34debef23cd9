"""The tables: those that order entries, and those derived from kinds of rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.inspect import (
    EnumType,
    Field,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    type_info,
)
from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.types import TypeEngine

from lockgate.storage_core.journal.entries.lease_entries import RENEWABLE, Lease
from lockgate.storage_core.journal.entries.state import Request, Row

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert

METADATA: Final = MetaData()
"""The tables that entries do not fold into."""

_MAKING: Final = threading.RLock()

_SQL_TYPES: Final[Mapping[type[Type], type[TypeEngine[Any]]]] = {
    StrType: Text,
    LiteralType: Text,
    EnumType: Text,
    IntType: BigInteger,
    FloatType: Double,
}


def table_of(kind: type[Row]) -> Table:
    """Return the table of a kind of row: the journal's name, then a column for each field."""
    with _MAKING:  # a cache alone lets two threads make two tables of one kind, which no statement may mix
        return _table_of(kind)


@cache
def _table_of(kind: type[Row]) -> Table:
    fields = cast("StructType", type_info(kind)).fields
    return Table(
        kind.TABLE,
        MetaData(),
        Column("journal", Text, primary_key=True),
        *(_column(field, kind) for field in fields),
        *(_index(kind, columns) for columns in kind.INDEXES),
    )


def _index(kind: type[Row], columns: tuple[str, ...]) -> Index:
    start = columns.index(kind.SORTED_FROM) if kind.SORTED_FROM in columns else len(columns)
    collations = dict.fromkeys(columns[start:], 'COLLATE "C"')
    name = f"{kind.TABLE}_by_{'_'.join(columns)}"
    # `postgresql_ops`, which are written after a column; given here, they load its dialect for SQLite, too.
    return Index(name, "journal", *columns, info=collations)


def read_columns(table: Table) -> list[Column[Any]]:
    """Return the columns to select for a kind of row, in the order of its fields.

    For a lease, `renewed_s` is the time of the last renewal of any kind.
    """
    stored = table.c.get("renewed_s") if table.name == Lease.TABLE else None
    columns = [at for at in table.columns if at.name != "journal"]
    return [cast("Column[Any]", RENEWED_S) if at is stored else at for at in columns]


def _column(field: Field, of: type[Row]) -> Column[Any]:
    kinds = field.type.types if isinstance(field.type, UnionType) else (field.type,)
    (kind,) = (kind for kind in kinds if not isinstance(kind, NoneType))
    is_key, stored = field.name in of.KEY, _SQL_TYPES[type(kind)]
    if is_key and field.name == of.SORTED_FROM:
        return Column(field.name, Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True)
    return Column(field.name, stored, primary_key=is_key, nullable=len(kinds) > 1)


def _table(name: str, *columns: Column[object] | Index | UniqueConstraint) -> Table:
    return Table(name, METADATA, Column("journal", Text, primary_key=True), *columns)


FAMILY: Final = Table(
    "entry_family",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
)
"""The entry families whose tables are in the database."""

HEAD: Final = _table(
    "head",
    Column("identity", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("timeline", BigInteger, nullable=False),
    Column("safe_since_s", Double),
    Column("pruned_sequence", BigInteger, nullable=False, default=0),
    Column("requests_since_s", Double, nullable=False, default=0.0),
)
"""One row for each journal. A write locks it first, which serialises the journal's writers.

`identity` is random, because names are not unique. Entries up to `pruned_sequence` were pruned. Request ids
from `requests_since_s` on are kept. `safe_since_s` is set while the journal is in safe mode, for the reasons
in `safe_reason`.
"""

SAFE_REASON: Final = _table(
    "safe_reason",
    Column("reason", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("since_s", Double, nullable=False),
)
"""`reason`: name; `text`: for operators."""

EPOCH: Final = _table(
    "epoch",
    Column("epoch", BigInteger, primary_key=True),
    Column("before", BigInteger, nullable=False),
    Column("timeline", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("began_s", Double, nullable=False),
)
"""`before`: last sequence of the earlier epochs that survived."""

ENTRY: Final = _table(
    "entry",
    Column("sequence", BigInteger, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("op", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("at_s", Double, nullable=False),
    UniqueConstraint("journal", "request_id", name="entry_request"),
)

HOLDER: Final = _table(
    "holder",
    Column("holder", Text, primary_key=True),
    Column("renewed_s", Double, nullable=False),
    Index("holder_by_renewed_s", "journal", "renewed_s"),
)
"""`renewed_s`: time of a holder's last renewal of all its leases, 0 before the first. See `renewals.py`."""

LEASE: Final = table_of(Lease)

IS_RENEWABLE: Final = LEASE.c.standing.in_(
    [literal_column(f"'{standing}'") for standing in sorted(RENEWABLE)]
)
"""Condition of a lease that renewals renew."""

RENEWED_S: Final = func.coalesce(
    select(HOLDER.c.renewed_s)
    .where(
        HOLDER.c.journal == LEASE.c.journal,
        HOLDER.c.holder == LEASE.c.holder,
        HOLDER.c.renewed_s > LEASE.c.renewed_s,
        LEASE.c.dropped_s.is_(None),
        IS_RENEWABLE,
    )
    .correlate(LEASE)
    .scalar_subquery(),
    LEASE.c.renewed_s,
    type_=Double,
).label("renewed_s")
"""Time of a lease's last renewal: its holder's, if that is later and applies to it. See `renewals.py`."""

REQUEST: Final = table_of(Request)
"""Requests whose entries were pruned."""


def insert_into(table: Table, for_sqlite: bool) -> SqliteInsert | PostgresqlInsert:
    """Return an insert of the database's own, which may have an `ON CONFLICT`."""
    if for_sqlite:
        return SqliteInsert(table)
    from sqlalchemy.dialects.postgresql import Insert  # noqa: PLC0415 - 20 modules

    return Insert(table)
