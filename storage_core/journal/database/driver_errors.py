"""Translate a database's errors to Lockgate's, with their effect and a remedy; retry those that allow it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    MalformedJournalError,
    NotAppliedError,
    OutcomeUnknownError,
)
from lockgate.storage_core.journal.database.damage import RESTORE, SQLITE_WORDS, Damaged


class TransactionUndoneError(JournalUnavailableError):
    """The database rolled back a transaction. Nothing was applied; a retry may succeed at once."""


_TRIES: Final = 4

_UNDONE: Final = frozenset({"40001", "40P01"})
"""SQLSTATEs of a serialization failure and a deadlock."""

_UNDEFINED_TABLE: Final = "42P01"

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
    (("is not a database", "no such table", *SQLITE_WORDS), MalformedJournalError, RESTORE),
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


def tries() -> Retrying:
    """Return the tries of an idempotent transaction: again after a rollback or a commit without answer."""
    return Retrying(
        retry=retry_if_exception_type((OutcomeUnknownError, TransactionUndoneError)),
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    )


def to_lockgate_error(name: str, error: Exception, damaged: Damaged | None = None) -> NotAppliedError:
    """Return the error to raise for an error before the commit: nothing was applied.

    Args:
        name: URL of the journal's database, without its password.
        error: Error of SQLAlchemy or the operating system.
        damaged: What is damaged, if the error is about damage.
    """
    message = driver_message(error)
    if damaged is not None:
        return MalformedJournalError(
            f"journal {name}: {damaged.finding(message)}; nothing was applied; see `lockgate journal verify`"
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
