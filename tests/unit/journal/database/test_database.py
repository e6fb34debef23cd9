"""URLs and names of a journal's database, and the effects of failed transactions on either kind."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from lockgate.storage_core.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    StateLostError,
)
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.database.database import Database, parse_url
from tests.support.journal.database import QUICK, entries, take


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "cannot be read: use sqlite:////"),
        ("mysql://lockgate:secret@db/lockgate", "cannot be read: use sqlite:////"),
        ("nonsense lockgate:secret@db", "cannot be read: use sqlite:////"),
        ("mongodb://secret", "…'mongodb' cannot be read"),
        ("secret", "cannot be read"),
        ("postgresql://lockgate:secret@db:port/lockgate", "'db:port/lockgate' cannot be read"),
        ("sqlite://", "in memory would be lost"),
        ("sqlite:///:memory:", "in memory would be lost"),
        ("sqlite:///file:x?mode=memory&uri=true", "in memory would be lost"),
        ("sqlite:///journal.db", "a relative path is another file in every working directory"),
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(url: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        open_journal(url)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://lockgate:secret@db/lockgate",
        "postgresql://db/lockgate?user=lockgate&password=secret&sslpassword=secret",
    ],
)
def test_the_name_of_a_database_shows_no_password(url: str) -> None:
    name = Database(parse_url(url)).name
    assert "secret" not in name
    assert "db/lockgate" in name


def test_an_error_about_a_missing_journal_names_it(journal: Journal) -> None:
    absent = Journal(journal.database, "absent", "identity")
    with pytest.raises(StateLostError, match="no journal 'absent'"):
        absent.apply(take("a"))
    with pytest.raises(StateLostError, match="no journal 'absent'"):
        absent.status()


def test_a_snapshot_does_not_change_while_others_write(journal: Journal) -> None:
    journal.apply(take("a"))
    with journal.reading() as reading:
        assert reading.status().stamp == Stamp(1, 1)
        journal_of_another_thread = threading.Thread(target=lambda: journal.apply(take("b")))
        journal_of_another_thread.start()
        journal_of_another_thread.join()
        assert reading.status().stamp == Stamp(1, 1)
        assert len(reading.entries(0, 10)) == 1
    assert journal.status().stamp == Stamp(1, 2)


def _lose_commits(journal: Journal, count: int, *, applied: bool) -> list[int]:
    """Lose the answers of the given number of commits, before or after they take effect."""
    lost: list[int] = []
    engine = journal.database._engine

    @event.listens_for(engine, "commit")
    def _commit(connection: Connection) -> None:
        if len(lost) < count:
            lost.append(1)
            if applied:
                connection.connection.dbapi_connection.commit()
            raise OperationalError("COMMIT", None, Exception("the server closed the connection"))

    return lost


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_without_an_answer_is_retried_and_has_one_effect(journal: Journal, applied: bool) -> None:
    lost = _lose_commits(journal, 1, applied=applied)
    written = journal.apply(take("a"))
    assert (written.stamp, written.is_repeat) == (Stamp(1, 1), applied)
    assert entries(journal) == 1
    assert len(lost) == 1


def test_a_commit_that_never_gets_an_answer_has_an_unknown_outcome(journal: Journal) -> None:
    _lose_commits(journal, 100, applied=False)
    with pytest.raises(OutcomeUnknownError, match="it may have been applied"):
        journal.apply(take("a"))


def test_a_retry_that_was_not_applied_does_not_hide_that_the_first_try_may_have_been(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as journal:
        other = sqlite3.connect(path, isolation_level=None)

        @event.listens_for(journal.database._engine, "commit")
        def _commit(connection: Connection) -> None:
            connection.connection.dbapi_connection.commit()
            other.execute("BEGIN IMMEDIATE")  # every later try is refused
            raise OperationalError("COMMIT", None, Exception("the disk gave no answer"))

        with pytest.raises(OutcomeUnknownError, match="it may have been applied"):
            journal.apply(take("a"))
        other.close()
        assert entries(journal) == 1


def test_an_interrupted_transaction_is_rolled_back_and_locks_nothing(journal: Journal) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.database, "_commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            journal.apply(take("a"))
    assert entries(journal) == 0
    assert journal.apply(take("a")).stamp == Stamp(1, 1)
