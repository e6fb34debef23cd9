"""Translate a database's errors to Lockgate's, with their effect and a remedy; retry those that allow it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

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

_LOCKED: Final = "another process has held its lock for too long; try again later"
_STANDBY: Final = (
    "it is a standby: name the primary in LOCKGATE_JOURNAL_URL, a standby in LOCKGATE_OBSERVER_URLS"
)
_REACH: Final = "see that it runs and can be reached (LOCKGATE_JOURNAL_URL), and try again"
_FULL: Final = "free space on its disk, then try again"
_CONNECT: Final = (
    "see that it runs and can be reached; see the user and the password (LOCKGATE_JOURNAL_URL, PGPASSFILE); "
    "if there is no such database, create the database with `createdb`; if all connections are in use, raise "
    "CONNECTION LIMIT of the role or max_connections; of several hosts one must be a primary"
)
"""Remedies for a refused connection: the driver does not pass on the SQLSTATE, and no language is assumed."""

_SQLSTATES: Final[Mapping[str, tuple[type[NotAppliedError], str]]] = {
    "08006": (JournalUnavailableError, "see why it hangs, or promote a standby; then try again"),
    "25006": (JournalUnavailableError, _STANDBY),
    "25P04": (
        JournalUnavailableError,
        "raise the limit that ended it: `ALTER ROLE … SET transaction_timeout = …`; then try again",
    ),
    "3F000": (
        JournalUnavailableError,
        "create the schema that LOCKGATE_JOURNAL_URL names: `CREATE SCHEMA …`",
    ),
    "42501": (JournalUnavailableError, "give its user the right to make and to write tables"),
    "42": (MalformedJournalError, "its tables are not as this program made them: " + RESTORE),
    "53100": (JournalUnavailableError, _FULL),
    "55P03": (JournalUnavailableError, _LOCKED),
    "57014": (
        JournalUnavailableError,
        "raise the limit that ended it: `ALTER ROLE … SET statement_timeout = …`, unless an operator did; "
        "then try again",
    ),
}
"""What to do about a PostgreSQL error, by its SQLSTATE or the first two characters of it."""

_WORDS: Final[Sequence[tuple[tuple[str, ...], type[NotAppliedError], str]]] = (
    (("database is locked", "database is busy"), JournalUnavailableError, _LOCKED),
    (
        ("readonly database", "read-only", "Read-only"),
        JournalUnavailableError,
        "make the file, its directory and its disk writable for this user, or name another (LOCKGATE_HOME)",
    ),
    (("disk is full", "No space left"), JournalUnavailableError, _FULL),
    (("is not a database", "no such table"), MalformedJournalError, RESTORE),
    (
        ("unable to open", "Permission denied", "Not a directory", "File exists"),
        JournalUnavailableError,
        "see that the file's directory exists and is writable for this user (LOCKGATE_HOME)",
    ),
    (
        ("QueuePool limit",),
        JournalUnavailableError,
        "all connections of this process are in use; try again later, or use fewer threads",
    ),
)
"""What to do about an error of SQLite, of its file or of the pool: these texts are not translated."""

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
    state = _sqlstate(error)
    known = _SQLSTATES.get(state, _SQLSTATES.get(state[:2]))
    if known is None and (state in _UNDONE or _is_lost(error)):
        return TransactionUndoneError(
            f"journal {name}: {message}; nothing was applied, the database rolled the transaction back; "
            "try again"
        )
    if known is None:
        known = _known_words(error, message)
    kind, remedy = known
    return kind(f"journal {name}: {message}; nothing was applied; {remedy}")


def _known_words(error: Exception, message: str) -> tuple[type[NotAppliedError], str]:
    """Return the class of an error without a known SQLSTATE, and what to do about it."""
    if isinstance(error, DataError):
        return InvalidInputError, "the database cannot store such a value; use another"
    if isinstance(error, IntegrityError):
        return MalformedJournalError, "it contradicts itself: see `lockgate journal verify`"
    if is_refused_connection(error):
        return JournalUnavailableError, _CONNECT
    for words, kind, remedy in () if _sqlstate(error) else _WORDS:
        if any(word in message for word in words):
            return kind, remedy
    return JournalUnavailableError, _REACH


def is_refused_connection(error: Exception) -> bool:
    """Return whether a PostgreSQL server did not accept a connection, or was not reached."""
    if not isinstance(error, OperationalError) or isinstance(error.orig, sqlite3.Error):
        return False
    return not (error.connection_invalidated or _sqlstate(error))


def is_damage(error: Exception) -> bool:
    """Return whether the database reports a damaged or missing page, table, index or file."""
    if isinstance(error, UnicodeDecodeError):
        return True  # Python's, for a message of SQLite that quotes a damaged schema
    cause: Any = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.DatabaseError):
        return any(words in str(cause) for words in _SQLITE_DAMAGE)
    state = _sqlstate(error)
    return state in _FILE or state.startswith(_INTERNAL)


def damage_finding(error: Exception) -> str:
    """Return a line about the damage that an error reports."""
    return f"the database is damaged: {driver_message(error)}; {RESTORE}"


def lacks_table(error: Exception) -> bool:
    """Return whether a table does not exist."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        return "no such table" in str(cause)
    return _sqlstate(error) == _UNDEFINED_TABLE


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


def _sqlstate(error: Exception) -> str:
    """Return PostgreSQL's code of an error, empty if it has none."""
    state: str | None = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state or ""


def _is_lost(error: Exception) -> bool:
    """Return whether the connection broke during the transaction."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _severity(cause: Any) -> str | None:
    severity: str | None = getattr(getattr(cause, "diag", None), "severity_nonlocalized", None)
    return severity
