"""Create or migrate the tables of all families. Newer versions are refused."""

from __future__ import annotations

import secrets
import threading
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from lockgate.storage_core.errors import InvalidInputError, JournalVersionError
from lockgate.storage_core.journal.database.database import Database, timeline
from lockgate.storage_core.journal.database.schema import EPOCH, HEAD, VERSION_TABLE
from lockgate.storage_core.journal.entries.family import JOURNAL, Family, known_families

_LOCK: Final = 7304512
"""PostgreSQL's advisory lock for creating and migrating a database."""

_ALEMBIC: Final = threading.Lock()
"""Alembic's state is global to the process."""


def bring_up_to_date(database: Database, journal: str) -> str:
    """Create the missing tables of all families, and the journal, in one transaction; return its identity.

    Of several processes that open a database at once, one does the work and the others wait for it.

    Raises:
        JournalVersionError: The database has a family of entries that this program does not know, or a newer
            version of one; nothing changed.
        InvalidInputError: It belongs to another program; nothing changed.
        JournalUnavailableError: It cannot be reached or written; nothing changed.
    """
    known_families()  # imports their modules, which takes too long within a transaction
    with database.snapshot() as connection:
        identity = None if outdated(connection, database) else _identity(connection, journal)
    if identity is not None:
        return identity
    import_module("alembic.command")  # slow, too: `upgrade` then finds it imported
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        if outdated(connection, database):  # again, because another process may have upgraded it
            upgrade(connection, database)
        _begin_journal(connection, database, journal)
        return _identity(connection, journal) or ""


def outdated(connection: Connection, database: Database) -> list[Family]:
    """Return the families that the database lacks or has in an older version.

    Raises:
        JournalVersionError: It has a family that this program does not know, or a newer version of one.
    """
    found = check_versions(connection, database)
    return [family for family in known_families() if found.get(family.name, 0) < family.version]


def check_versions(connection: Connection, database: Database) -> dict[str, int]:
    """Return the version of each family in the database, by name.

    Raises:
        JournalVersionError: This program does not know one of them, or knows only an older version.
    """
    if not inspect(connection).has_table(VERSION_TABLE.name):
        return {}
    revisions = sorted(map(str, connection.execute(select(VERSION_TABLE.c.version_num)).scalars()))
    named = [revision.rpartition("_") for revision in revisions]
    found = {name: int(number) for name, _, number in named if name and number.isdecimal()}
    if len(found) < len(revisions) or JOURNAL.name not in found:
        known = ", ".join(family.revision for family in known_families())
        raise JournalVersionError(
            f"journal {database.name} is of version {', '.join(revisions) or 'none'}, this program's is "
            f"{known}; nothing was changed; use the release of Lockgate that made it, or give the journal a "
            "database or a schema of its own (LOCKGATE_JOURNAL_URL)"
        )
    known_families().refuse_unknown(found, f"journal {database.name}")
    return found


def upgrade(connection: Connection, database: Database) -> None:
    """Run the missing migrations of all families.

    Raises:
        InvalidInputError: Another program has tables of the same names.
    """
    from alembic import command  # noqa: PLC0415 - slow to import, and seldom needed
    from alembic.config import Config  # noqa: PLC0415

    _refuse_strange_tables(connection, database)
    config = Config()
    config.set_main_option("script_location", "lockgate.storage_core.journal.database:migrations")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(_folders()).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "heads")


def _folders() -> list[str]:
    """Return the folders of all families' migrations."""
    specs = [find_spec(family.migrations) for family in known_families()]
    return [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]


def _refuse_strange_tables(connection: Connection, database: Database) -> None:
    found = check_versions(connection, database)
    missing = (family.tables for family in known_families() if family.name not in found)
    strange = sorted(frozenset().union(*missing) & set(inspect(connection).get_table_names()))
    if strange:
        raise InvalidInputError(
            f"journal {database.name}: another program has tables there named {', '.join(strange)}; nothing "
            "was changed; give the journal a database or a schema of its own (LOCKGATE_JOURNAL_URL)"
        )


def _begin_journal(connection: Connection, database: Database, journal: str) -> None:
    insert_new = sqlite_insert if database.is_sqlite else postgresql_insert
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
        connection.execute(insert_new(table).values(row).on_conflict_do_nothing())


def _identity(connection: Connection, journal: str) -> str | None:
    return connection.execute(select(HEAD.c.identity).where(HEAD.c.journal == journal)).scalar_one_or_none()
