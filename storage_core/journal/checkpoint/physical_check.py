"""Check the pages and indexes of a journal's database with the database's own means.

Folding entries does not find every damage: an index that lacks a row, or a page that no fold reads. SQLite
has `PRAGMA integrity_check`, PostgreSQL the extension amcheck.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from lockgate.storage_core.concurrency import Progress
from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal.database.damage import Damaged, is_cut_off, is_damage
from lockgate.storage_core.journal.database.driver_errors import driver_message
from lockgate.storage_core.journal.database.schema import VERSION_TABLE
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.read.snapshot_read import Reading

_NAMED: Final = 20
"""Number of damages to name for each table or index."""

_AMCHECK: Final = text(
    "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
    "WHERE e.extname = 'amcheck'"
)
_MAY_CHECK: Final = (
    "SELECT bool_and(coalesce(has_function_privilege(to_regprocedure('{0}.' || name), 'EXECUTE'), false)) "
    "FROM (VALUES ('bt_index_check(regclass,boolean)'), "
    "('verify_heapam(regclass,boolean,boolean,text,bigint,bigint)')) AS needed (name)"
)
_INDEXES: Final = text(
    "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = to_regclass(:table) AND a.amname = 'btree' ORDER BY 1"
)


class PhysicalCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of checking pages and indexes.

    Attributes:
        by: `PRAGMA integrity_check` or `amcheck`; empty if they were not checked.
        why_not: Why they were not checked, and what to do.
        findings: Messages, each about a damaged page, table or index.
    """

    by: str = ""
    why_not: str = ""
    findings: tuple[str, ...] = ()


def check_pages(reading: Reading, progress: Progress) -> PhysicalCheck:
    """Check the pages of all tables, and their indexes against them.

    Args:
        reading: State of the journal; it stays usable.
        progress: Called with the number of tables.
    """
    if reading.database.is_sqlite:
        return PhysicalCheck(by="PRAGMA integrity_check", findings=tuple(_sqlite_damages(reading)))
    schema = reading.connection.execute(_AMCHECK).scalar_one_or_none()
    if schema is None:
        return PhysicalCheck(
            why_not="PostgreSQL has no amcheck in this database; as superuser: CREATE EXTENSION amcheck"
        )
    quoted = reading.connection.dialect.identifier_preparer.quote(schema)
    if not reading.connection.exec_driver_sql(_MAY_CHECK.format(quoted)).scalar_one():
        return PhysicalCheck(
            why_not="this user may not call amcheck (of PostgreSQL 14 or newer); as superuser: GRANT EXECUTE "
            f"ON ALL FUNCTIONS IN SCHEMA {quoted} TO {reading.database.url.username}"
        )
    found = list[str]()
    tables = _tables()
    for number, table in enumerate(tables, start=1):
        found += _postgresql_damages(reading, quoted, table)
        progress("check pages and indexes", number, len(tables))
    return PhysicalCheck(by="amcheck", findings=tuple(found))


def _tables() -> list[str]:
    return sorted({VERSION_TABLE.name}.union(*(family.tables for family in known_families())))


def _sqlite_damages(reading: Reading) -> Iterator[str]:
    try:
        lines = reading.connection.exec_driver_sql(f"PRAGMA integrity_check({_NAMED})").scalars().all()
    except DBAPIError as error:
        if not is_damage(error):
            raise
        lines = [driver_message(error)]
    for line in lines:
        if line != "ok":
            yield f"the file is damaged: {' '.join(str(line).split())}"


def _postgresql_damages(reading: Reading, schema: str, table: str) -> Iterator[str]:
    heap = f"{schema}.verify_heapam('{table}', check_toast => true)"
    for row in _checked(reading, table, f"SELECT blkno, msg FROM {heap} LIMIT {_NAMED}"):  # noqa: S608 - our names
        damage = row if isinstance(row, str) else f"block {row[0]}: {row[1]}"
        yield Damaged(name=f"table {table}").finding(damage)
    for index in reading.connection.execute(_INDEXES, {"table": table}).scalars().all():
        for row in _checked(reading, table, f"SELECT {schema}.bt_index_check('{index}'::regclass, true)"):
            if isinstance(row, str):
                yield f"index {index} of table {table} is damaged: {row}; rebuild it: REINDEX INDEX {index}"


def _checked(reading: Reading, table: str, statement: str) -> list[tuple[int, str] | str]:
    """Return the rows of a check, or the message of its error, after which the transaction goes on.

    Raises:
        JournalUnavailableError: The connection broke.
    """
    try:
        with reading.connection.begin_nested():
            return [tuple(row) for row in reading.connection.exec_driver_sql(statement)]
    except DBAPIError as error:
        if is_cut_off(error):
            raise JournalUnavailableError(
                f"journal {reading.database.name}: the connection broke while table {table} was checked: "
                f"{driver_message(error)}; nothing was changed; see the server's log: a damaged page may "
                "have ended its process; then restore the journal: `lockgate journal restore`"
            ) from error
        if not is_damage(error):
            raise
        return [driver_message(error)]
