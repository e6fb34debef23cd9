"""Errors of a database become errors with a class, an exit code and a remedy."""

from __future__ import annotations

import sqlite3

import psycopg.errors
import pytest
from sqlalchemy.exc import DatabaseError

from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal.database.driver_errors import to_lockgate_error


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
