"""Create the tables of all entry families. A database with a family of another version is refused."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from typing import Final

from sqlalchemy import Connection, DDLElement, Table, insert, inspect, select, text
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.database.database import Database, timeline
from lockgate.storage_core.journal.database.schema import (
    EPOCH,
    FAMILY,
    HEAD,
    METADATA,
    REQUEST,
    insert_into,
    table_of,
)
from lockgate.storage_core.journal.entries.family import JOURNAL, Family, known_families

_LOCK: Final = 7304512
"""PostgreSQL's advisory lock for creating tables."""


def ensure_tables(database: Database, journal: str) -> str:
    """Create the missing tables of all families, and the journal, in one transaction; return its identity.

    Of several processes that open a database at once, one does the work and the others wait for it.

    Raises:
        JournalVersionError: The database has a family that this program does not know, or another version of
            one; nothing changed.
        InvalidInputError: It belongs to another program; nothing changed.
        JournalUnavailableError: It cannot be reached or written; nothing changed.
    """
    known_families()  # imports their modules, which takes too long within a transaction
    with database.snapshot() as connection:
        identity = None if _missing(connection, database) else _identity(connection, journal)
    if identity is not None:
        return identity
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        missing = _missing(connection, database)  # again, because another process may have created them
        _refuse_strange_tables(connection, database, missing)
        for family in missing:
            for table in _tables(family):
                for statement in _definition(table, database.is_sqlite):
                    connection.exec_driver_sql(statement)
            FAILPOINTS.hit(f"journal-create.{family.name}")
        if missing:
            versions = [{"name": family.name, "version": family.version} for family in missing]
            connection.execute(insert(FAMILY), versions)
        _begin_journal(connection, database, journal)
        return _identity(connection, journal) or ""


def check_versions(connection: Connection, database: Database) -> dict[str, int]:
    """Return the version of each family in the database, by name; empty if it has no tables of a journal.

    Raises:
        JournalVersionError: This program does not know one of them, or knows another version.
    """
    if not inspect(connection).has_table(FAMILY.name):
        return {}
    found = {str(name): int(version) for name, version in connection.execute(select(FAMILY))}
    known_families().refuse_other(found, f"journal {database.name}")
    return found


def _missing(connection: Connection, database: Database) -> list[Family]:
    """Return the families that the database lacks."""
    found = check_versions(connection, database)
    return [family for family in known_families() if family.name not in found]


def _tables(family: Family) -> list[Table]:
    own = [*METADATA.sorted_tables, REQUEST] if family is JOURNAL else []
    return [*own, *map(table_of, (*family.rows, *family.soft_rows))]


def _refuse_strange_tables(connection: Connection, database: Database, missing: Sequence[Family]) -> None:
    wanted = {table.name for family in missing for table in _tables(family)}
    strange = sorted(wanted.intersection(inspect(connection).get_table_names()))
    if strange:
        raise InvalidInputError(
            f"journal {database.name}: another program has tables there named {', '.join(strange)}; nothing "
            "was changed; give the journal a database or a schema of its own (LOCKGATE_JOURNAL_URL)"
        )


@cache
def _definition(table: Table, for_sqlite: bool) -> list[str]:
    """Return the statements that create a table and its indexes."""
    dialect = registry.load("sqlite" if for_sqlite else "postgresql.psycopg")()
    if not for_sqlite:
        for index in table.indexes:
            index.dialect_options["postgresql"]["ops"] = index.info
    definitions: list[DDLElement] = [CreateTable(table), *map(CreateIndex, table.indexes)]
    return [str(definition.compile(dialect=dialect)) for definition in definitions]


def _begin_journal(connection: Connection, database: Database, journal: str) -> None:
    (now_s, server_timeline) = connection.execute(select(database.now(), timeline(database.is_sqlite))).one()
    head = {
        "journal": journal,
        "identity": secrets.token_hex(16),
        "epoch": 1,
        "sequence": 0,
        "timeline": server_timeline,
        "pruned_sequence": 0,
        "requests_since_s": 0.0,
    }
    first = {
        "journal": journal,
        "epoch": 1,
        "before": 0,
        "timeline": server_timeline,
        "reason": "new",
        "began_s": now_s,
    }
    for table, row in ((HEAD, head), (EPOCH, first)):
        connection.execute(insert_into(table, database.is_sqlite).values(row).on_conflict_do_nothing())


def _identity(connection: Connection, journal: str) -> str | None:
    return connection.execute(select(HEAD.c.identity).where(HEAD.c.journal == journal)).scalar_one_or_none()
