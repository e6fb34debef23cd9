"""Errors of a database become errors with a class, an exit code and a remedy."""

from __future__ import annotations

import sqlite3

import psycopg.errors
import pytest
from sqlalchemy.exc import DatabaseError, OperationalError

from lockgate.storage_core.errors import JournalUnavailableError, LockgateError, MalformedJournalError
from lockgate.storage_core.journal.database.driver_errors import TransactionUndoneError, to_lockgate_error


@pytest.mark.parametrize(
    "reported",
    [
        psycopg.errors.DataCorrupted("invalid page in block 3"),
        psycopg.errors.IndexCorrupted("could not read block"),
        psycopg.errors.UndefinedFile("could not open file"),
        sqlite3.DatabaseError("database disk image is malformed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_damage_that_a_read_or_write_meets_exits_with_3(reported: Exception) -> None:
    error = to_lockgate_error("main", DatabaseError("SELECT 1", {}, reported))
    assert isinstance(error, MalformedJournalError)
    assert error.exit_code == 3
    assert "the database is damaged" in str(error)
    assert "lockgate journal verify" in str(error)


def test_a_message_of_sqlite_that_cannot_be_decoded_is_damage() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert isinstance(to_lockgate_error("main", error), MalformedJournalError)


@pytest.mark.parametrize(
    ("state", "text", "kind", "remedy"),
    [
        ("25006", "kann INSERT nicht in einer Read-Only-Transaktion ausführen", None, "it is a standby"),
        ("25P04", "Verbindung wird abgebrochen", None, "transaction_timeout"),
        ("3F000", "kein Schema für die Objekterzeugung ausgewählt", None, "CREATE SCHEMA"),
        ("40P01", "Verklemmung (Deadlock) entdeckt", TransactionUndoneError, "rolled the transaction back"),
        ("42501", "keine Berechtigung für Schema public", None, "the right to make and to write tables"),
        ("42703", "Spalte »at_s« existiert nicht", MalformedJournalError, "not as this program made them"),
        ("42P01", "Relation »head« existiert nicht", MalformedJournalError, "not as this program made them"),
        ("53100", "konnte Datei nicht erweitern", None, "free space on its disk"),
        ("55P03", "storniere Anfrage wegen Zeitüberschreitung", None, "has held its lock for too long"),
        ("57014", "storniere Anfrage wegen Zeitüberschreitung", None, "statement_timeout"),
    ],
)
@pytest.mark.parametrize("is_lost", [False, True], ids=["session-lives", "session-ended"])
def test_an_error_of_postgresql_is_known_by_its_sqlstate_in_any_language(
    state: str, text: str, kind: type[LockgateError] | None, remedy: str, is_lost: bool
) -> None:
    reported = psycopg.errors.lookup(state)(text)
    error = to_lockgate_error(
        "main", OperationalError("SELECT 1", {}, reported, connection_invalidated=is_lost)
    )
    assert type(error) is (kind or JournalUnavailableError)
    assert text in str(error)
    assert "nothing was applied" in str(error)
    assert remedy in str(error)


def test_a_refused_connection_has_the_same_remedy_in_any_language() -> None:
    """The driver does not pass on the SQLSTATE of a server that refuses a connection."""
    reported = psycopg.OperationalError("FATAL:  zu viele Verbindungen für Rolle »lockgate«")
    error = to_lockgate_error("main", OperationalError(None, None, reported))
    assert type(error) is JournalUnavailableError
    for part in ("»lockgate«", "the user and the password", "`createdb`", "CONNECTION LIMIT"):
        assert part in str(error)
