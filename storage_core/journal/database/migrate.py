"""A database of this version: made, or migrated from an older one. Any other is left as it is."""

from __future__ import annotations

import secrets
import threading
from typing import Final

from sqlalchemy import Connection, insert, inspect, select, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from lockgate.storage_core.errors import InvalidInputError, JournalVersionError
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.schema import (
    EPOCH,
    HEAD,
    METADATA,
    OBSERVER_MARK,
    VERSION,
    VERSION_TABLE,
    VERSIONS,
)

_LOCK: Final = 7304512
"""Of PostgreSQL's advisory locks, the one that a database is made and migrated under."""

_ALEMBIC: Final = threading.Lock()
"""What Alembic works on is global to the process."""


def bring_up_to_date(database: Database, journal: str) -> str:
    """Make the tables and the journal where they are missing; returns the journal's identity.

    All is one transaction: a crash leaves the database as it was. Of several processes that open it at once,
    one does the work and the others wait for it.

    Raises:
        JournalVersionError: The database is of a version that this program does not know; nothing changed.
        InvalidInputError: It is another program's; nothing changed.
        JournalUnavailableError: It cannot be reached or written; nothing changed.
    """
    with database.snapshot() as connection:
        _refuse_observer(connection, database)
        version = version_of(connection, database)
        identity = _identity(connection, journal) if version == VERSION else None
    if identity is not None:
        return identity
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        version = version_of(connection, database)  # again: another process may have done it meanwhile
        if version is None:
            make_tables(connection, database)
        elif version != VERSION:
            _upgrade(connection)
        _begin_journal(connection, database, journal)
        return _identity(connection, journal) or ""


def version_of(connection: Connection, database: Database) -> str | None:
    """Return the version of the tables, None where there are none at all.

    Raises:
        JournalVersionError: This program does not know it.
    """
    if not inspect(connection).has_table(VERSION_TABLE.name):
        return None
    found: list[str] = list(connection.execute(select(VERSION_TABLE.c.version_num)).scalars())
    if len(found) == 1 and found[0] in VERSIONS:
        return found[0]
    raise JournalVersionError(
        f"journal {database.name} is of version {', '.join(found) or 'none'}, this program's is {VERSION}; "
        "nothing was changed; use the release of Lockgate that made it, or a newer one, or give the journal "
        "a database of its own (LOCKGATE_JOURNAL_URL)"
    )


def _refuse_observer(connection: Connection, database: Database) -> None:
    """Let nobody write to a file that follows a primary: it would follow no more, and nobody would see it."""
    if database.is_sqlite and connection.execute(text("PRAGMA application_id")).scalar() == OBSERVER_MARK:
        raise InvalidInputError(
            f"journal {database.name} is an observer's copy: nothing was changed; name the primary "
            "(LOCKGATE_JOURNAL_URL), and this file among LOCKGATE_OBSERVER_URLS"
        )


def make_tables(connection: Connection, database: Database) -> None:
    """Make the newest tables at once: without Alembic, whose import alone takes longer.

    Raises:
        InvalidInputError: Another program has such tables there.
    """
    strange = sorted(METADATA.tables.keys() & set(inspect(connection).get_table_names()))
    if strange:
        raise InvalidInputError(
            f"journal {database.name}: another program has tables there named {', '.join(strange)}; nothing "
            "was changed; give the journal a database of its own (LOCKGATE_JOURNAL_URL)"
        )
    METADATA.create_all(connection, checkfirst=False)
    VERSION_TABLE.create(connection)
    connection.execute(insert(VERSION_TABLE).values(version_num=VERSION))


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - slow to import, and seldom needed
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "lockgate.storage_core.journal:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, VERSION)


def _begin_journal(connection: Connection, database: Database, journal: str) -> None:
    insert_new = sqlite_insert if database.is_sqlite else postgresql_insert
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
        connection.execute(insert_new(table).values(row).on_conflict_do_nothing())


def _identity(connection: Connection, journal: str) -> str | None:
    return connection.execute(select(HEAD.c.identity).where(HEAD.c.journal == journal)).scalar_one_or_none()
