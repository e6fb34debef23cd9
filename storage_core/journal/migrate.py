"""A database of this version: made, or migrated from an older one."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from storage_core.errors import JournalVersionError
from storage_core.journal.database import Database
from storage_core.journal.schema import EPOCH, HEAD, METADATA, VERSION


def bring_up_to_date(database: Database, journal: str) -> str:
    """Make the tables and the journal where they are missing; returns the journal's identity.

    Raises:
        JournalVersionError: The database is of a version that this program does not know.
    """
    with database.snapshot() as connection:
        is_new = not inspect(connection).has_table("alembic_version")
        version = None if is_new else _version(connection)
        found = None if is_new else _identity(connection, journal)
    if version == VERSION and found is not None:
        return found
    if version not in {None, VERSION}:
        raise JournalVersionError(
            f"journal {database.name} is of version {version}, this program of {VERSION}"
        )
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(7304512)"))
        if version is None and not inspect(connection).has_table("alembic_version"):
            METADATA.create_all(connection)
            connection.execute(
                text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
            )
            connection.execute(text("INSERT INTO alembic_version VALUES (:version)"), {"version": VERSION})
        _begin_journal(connection, database, journal)
        return _identity(connection, journal) or ""


def _begin_journal(connection: Connection, database: Database, journal: str) -> None:
    insert = sqlite_insert if database.is_sqlite else postgresql_insert
    (now_s, timeline) = connection.execute(select(database.now(), database.timeline())).one()
    head = {
        "journal": journal,
        "identity": secrets.token_hex(16),
        "epoch": 1,
        "sequence": 0,
        "timeline": timeline,
        "safe_reason": "",
        "pruned_sequence": 0,
        "requests_since_s": 0.0,
    }
    first = {
        "journal": journal,
        "epoch": 1,
        "before": 0,
        "timeline": timeline,
        "reason": "new",
        "began_s": now_s,
    }
    for table, row in ((HEAD, head), (EPOCH, first)):
        connection.execute(insert(table).values(row).on_conflict_do_nothing())


def _version(connection: Connection) -> str | None:
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _identity(connection: Connection, journal: str) -> str | None:
    return connection.execute(select(HEAD.c.identity).where(HEAD.c.journal == journal)).scalar_one_or_none()
