"""Translate a database's errors to Lockgate's, with their effect and a remedy; retry those that allow it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    MalformedJournalError,
    NotAppliedError,
    OutcomeUnknownError,
)
from lockgate.storage_core.retry import Retry


class TransactionUndoneError(JournalUnavailableError):
    """The database rolled back a transaction. Nothing was applied; a retry may succeed at once."""


_UNDONE: Final = frozenset({"40001", "40P01"})
"""SQLSTATEs of a serialization failure and a deadlock."""

_UNDEFINED_TABLE: Final = "42P01"

RESTORE: Final = "name another file, or restore the journal: `lockgate journal restore`"

_SQLITE_DAMAGE: Final = (
    "malformed",
    "Could not decode to UTF-8",
    "unsupported file format",
)

_INTERNAL: Final = "XX"
"""Class of the SQLSTATEs of damaged data, of a damaged index, and of what PostgreSQL did not expect."""

_FILE: Final = frozenset({"58P01", "58030"})
"""SQLSTATEs of a missing file, and of a file that cannot be read or written."""

_REMEDIES: Final[Sequence[tuple[tuple[str, ...], type[NotAppliedError], str]]] = (
    (
        ("database is locked", "database is busy", "lock timeout", "canceling statement due to lock"),
        JournalUnavailableError,
        "another process has held its lock for too long; try again later",
    ),
    (
        ("hot standby", "recovery is in progress", "in a read-only transaction"),
        JournalUnavailableError,
        "it is a standby: name the primary in LOCKGATE_JOURNAL_URL, a standby in LOCKGATE_OBSERVER_URLS",
    ),
    (
        ("readonly database", "read-only", "Read-only"),
        JournalUnavailableError,
        "make the file, its directory and its disk writable for this user, or name another (LOCKGATE_HOME)",
    ),
    (
        ("disk is full", "No space left", "could not extend file"),
        JournalUnavailableError,
        "free space on its disk, then try again",
    ),
    (
        ("no schema has been selected",),
        JournalUnavailableError,
        "create the schema that LOCKGATE_JOURNAL_URL names: `CREATE SCHEMA …`",
    ),
    (("permission denied",), JournalUnavailableError, "give its user the right to make and to write tables"),
    (("is not a database", "no such table"), MalformedJournalError, RESTORE),
    (
        ('relation "', 'column "'),
        MalformedJournalError,
        "its tables are not as this program made them: " + RESTORE,
    ),
    (
        ("password", "authentication failed", "pg_hba.conf", 'role "'),
        JournalUnavailableError,
        "see the user and the password in LOCKGATE_JOURNAL_URL, or PGPASSFILE",
    ),
    (
        ('database "',),
        JournalUnavailableError,
        "create the database with `createdb`, or name another in LOCKGATE_JOURNAL_URL",
    ),
    (
        ("unable to open", "Permission denied", "Not a directory", "File exists"),
        JournalUnavailableError,
        "see that the file's directory exists and is writable for this user (LOCKGATE_HOME)",
    ),
    (
        ("slots are reserved", "too many clients", "too many connections", "QueuePool limit"),
        JournalUnavailableError,
        "all connections are in use; try again later, or allow more of them",
    ),
)

TRANSACTION_TRIES: Final = Retry(
    lambda error: isinstance(error, (OutcomeUnknownError, TransactionUndoneError)),
    tries=4,
    pause_s=0.05,
    longest_pause_s=1.0,
)
"""Tries of an idempotent transaction: again after a rollback or a commit without answer."""


def to_lockgate_error(name: str, error: Exception) -> NotAppliedError:
    """Return the error to raise for an error before the commit: nothing was applied."""
    message = driver_message(error)
    if is_damage(error):
        return MalformedJournalError(
            f"journal {name}: {damage_finding(error)}; nothing was applied; see `lockgate journal verify`"
        )
    if _is_undone(error):
        return TransactionUndoneError(
            f"journal {name}: {message}; nothing was applied, the database rolled the transaction back; "
            "try again"
        )
    kind: type[NotAppliedError] = JournalUnavailableError
    remedy = "see that it runs and can be reached (LOCKGATE_JOURNAL_URL), and try again"
    if isinstance(error, DataError):
        kind, remedy = InvalidInputError, "the database cannot store such a value; use another"
    elif isinstance(error, IntegrityError):
        kind, remedy = MalformedJournalError, "it contradicts itself: see `lockgate journal verify`"
    else:
        for words, known_kind, known_remedy in _REMEDIES:
            if any(word in message for word in words):
                kind, remedy = known_kind, known_remedy
                break
    return kind(f"journal {name}: {message}; nothing was applied; {remedy}")


def is_damage(error: Exception) -> bool:
    """Return whether the database reports a damaged or missing page, table, index or file."""
    if isinstance(error, UnicodeDecodeError):
        return True  # Python's, for a message of SQLite that quotes a damaged schema
    cause: Any = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.DatabaseError):
        return any(words in str(cause) for words in _SQLITE_DAMAGE)
    state = getattr(cause, "sqlstate", None) or ""
    return state in _FILE or state.startswith(_INTERNAL)


def damage_finding(error: Exception) -> str:
    """Return a line about the damage that an error reports."""
    return f"the database is damaged: {driver_message(error)}; {RESTORE}"


def lacks_table(error: Exception) -> bool:
    """Return whether a table does not exist."""
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlstate", None) == _UNDEFINED_TABLE or "no such table" in str(cause)


def refused_commit(error: SQLAlchemyError) -> bool:
    """Return whether the database refused a commit: nothing was applied. Other errors are no answer."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        return any(words in str(cause) for words in ("database is locked", "database or disk is full"))
    return _severity(cause) == "ERROR" and not _is_lost(error)


def driver_message(error: Exception) -> str:
    """Return the first line of a driver's message, without the statement."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def _is_undone(error: Exception) -> bool:
    return _is_lost(error) or getattr(getattr(error, "orig", None), "sqlstate", None) in _UNDONE


def _is_lost(error: Exception) -> bool:
    """Return whether the connection broke during the transaction."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _severity(cause: Any) -> str | None:
    severity: str | None = getattr(getattr(cause, "diag", None), "severity_nonlocalized", None)
    return severity
