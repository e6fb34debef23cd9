"""The head's row is locked without being written: a write makes one version of it, a refused one none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from lockgate.storage_core.errors import LeaseHeldError
from lockgate.storage_core.journal import Stamp, open_journal
from tests.support.journal.database import take
from tests.support.postgres import Server


@pytest.mark.requires("postgres")
def test_a_write_makes_one_version_of_the_head_row_and_a_refused_one_none(postgres: Server) -> None:
    url = postgres.new_database("versions")
    with open_journal(url) as journal, psycopg.connect(url) as snapshot, psycopg.connect(url) as other:
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        snapshot.execute("SELECT * FROM head")  # no version of the row is removed while it is open
        other.autocommit = True
        before = versions(other)
        for number in range(20):
            journal.apply(take(f"r{number}"))
        assert versions(other) - before == 20
        with pytest.raises(LeaseHeldError):
            journal.apply(take("r0"))
        journal.apply(take("a"), "request")
        assert journal.apply(take("a"), "request").is_repeat
        assert versions(other) - before == 21


def test_a_refused_write_writes_nothing_to_an_sqlite_file(tmp_path: Path) -> None:
    log = tmp_path / "journal.db-wal"
    with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        journal.apply(take("a"))
        before = log.read_bytes()
        with pytest.raises(LeaseHeldError):
            journal.apply(take("a"))
        assert log.read_bytes() == before


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("end", [psycopg.Connection.commit, psycopg.Connection.rollback])
def test_a_write_that_waited_for_the_head_has_the_head_and_the_time_of_after_the_wait(
    postgres: Server, end: Callable[[psycopg.Connection], None]
) -> None:
    """PostgreSQL computes the columns of a SELECT … FOR UPDATE before it waits for the row."""
    name = f"waited_{end.__name__}"
    url = postgres.new_database(name)
    waits = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock'"
    with open_journal(url) as journal, psycopg.connect(url) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        other.execute("UPDATE head SET sequence = 5")
        waiting = threading.Thread(target=lambda: journal.apply(take("a")))
        waiting.start()
        while postgres.run_sql(waits) != "1":
            pass
        row = other.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert row is not None
        end(other)
        waiting.join()
        with journal.reading() as reading:
            (entry,) = reading.entries(0, 10)
        assert entry.stamp == Stamp(1, 6 if end is psycopg.Connection.commit else 1)
        assert entry.at_s >= row[0]


def versions(connection: psycopg.Connection) -> int:
    """Return the place of the newest version of the head's row in its page."""
    row = connection.execute("SELECT ctid::text FROM head").fetchone()
    assert row is not None
    page, place = row[0].strip("()").split(",")
    assert page == "0"
    return int(place)
