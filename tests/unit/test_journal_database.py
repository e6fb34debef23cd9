"""What a database answers when it cannot be used: what it left applied, and what people can do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text
from sqlalchemy.exc import OperationalError

from storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    MalformedJournalError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from storage_core.journal import Journal, Stamp, open_journal
from storage_core.journal.database import Database, parse_url
from storage_core.journal.ops.leases import TakeLease
from storage_core.journal.rows import Lease
from storage_core.journal.schema import EPOCH, LEASE
from storage_core.journal.trouble import TransactionUndoneError
from tests.postgres_world import Server, free_port, primary
from tests.storing_world import before_storing

QUICK = 0.05
"""Seconds that a lock is waited for, where a test wants the wait to be in vain."""


def take(resource: str, detail: str = "") -> TakeLease:
    return TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120, detail=detail)


def entries(journal: Journal) -> int:
    with journal.reading() as reading:
        return len(reading.entries(0, 1000))


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act as a user whom file permissions bind: they do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can come to; pytest's own are root's alone."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


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
def test_a_url_that_cannot_be_is_refused_and_shows_no_password(url: str, words: str) -> None:
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
def test_a_databases_name_shows_no_password(url: str) -> None:
    name = Database(parse_url(url)).name
    assert "secret" not in name
    assert "db/lockgate" in name


def test_a_directory_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is a directory: name a file in it"):
        open_journal(f"sqlite:///{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalUnavailableError, match="the file's directory exists and is writable"):
        open_journal(f"sqlite:///{tmp_path}/file/journal.db")


def test_a_file_that_is_not_sqlite_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, and longer than a header of SQLite is\n" * 100)
    before = path.read_bytes()
    with pytest.raises(MalformedJournalError, match="lockgate journal restore"):
        open_journal(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_corrupt_file_is_refused_with_the_way_to_restore_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}") as journal:
        journal.apply(take("a"))
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xff" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(MalformedJournalError, match="lockgate journal restore"):
        open_journal(f"sqlite:///{path}")
    assert path.read_bytes() == damaged


@contextmanager
def locked(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_locked_file_is_told_of_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as journal:
        with locked(path), pytest.raises(JournalUnavailableError, match="another process has held its lock"):
            journal.apply(take("a"))
        assert entries(journal) == 0
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_a_new_file_that_is_locked_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with locked(path), pytest.raises(JournalUnavailableError, match="another process has held its lock"):
        open_journal(f"sqlite:///{path}", busy_s=QUICK)


def test_a_locked_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as journal:
        journal.apply(take("a"))
        with locked(path):
            assert entries(journal) == 1


def test_a_file_that_may_not_be_written_is_told_of_and_nothing_is_changed(open_dir: Path) -> None:
    path = open_dir / "journal.db"
    open_journal(f"sqlite:///{path}").close()
    path.chmod(0o444)
    before = path.read_bytes()
    with as_nobody(), pytest.raises(JournalUnavailableError, match="writable for this user"):
        open_journal(f"sqlite:///{path}").apply(take("a"))
    assert path.read_bytes() == before


def test_a_directory_that_may_not_be_written_is_told_of(open_dir: Path) -> None:
    open_dir.chmod(0o555)
    with as_nobody(), pytest.raises(JournalUnavailableError, match="writable for this user"):
        open_journal(f"sqlite:///{open_dir}/below/journal.db")
    with as_nobody(), pytest.raises(JournalUnavailableError, match="writable for this user"):
        open_journal(f"sqlite:///{open_dir}/journal.db")
    assert list(open_dir.iterdir()) == []


def test_a_disk_that_turns_read_only_is_told_of_and_nothing_is_written(tmp_path: Path) -> None:
    """No disk is mounted here: SQLite is told to refuse writes, and answers as it does on such a disk."""
    with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        journal.apply(take("a"))
        _on_checkout(journal, "PRAGMA query_only=ON")
        with pytest.raises(JournalUnavailableError, match="its disk writable"):
            journal.apply(take("b"))
        assert entries(journal) == 1


def test_a_full_disk_is_told_of_and_nothing_is_written(tmp_path: Path) -> None:
    with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        journal.apply(take("a"))
        pages = _ask(journal, "PRAGMA page_count")
        _on_checkout(journal, f"PRAGMA max_page_count={pages}")
        with pytest.raises(JournalUnavailableError, match="free space on its disk"):
            journal.apply(take("b", "b" * 100_000))
        assert entries(journal) == 1
        _on_checkout(journal, "PRAGMA max_page_count=1000000")
        assert journal.apply(take("c")).stamp == Stamp(1, 2)


def test_a_file_that_was_removed_amid_its_use_is_not_written_unseen(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}") as journal:
        journal.apply(take("a"))
        path.rename(tmp_path / "moved.db")
        with pytest.raises(MalformedJournalError, match="lockgate journal restore"):
            journal.apply(take("b"))


def test_a_file_that_was_replaced_amid_its_use_is_used_from_then_on(tmp_path: Path) -> None:
    path, copy = tmp_path / "journal.db", tmp_path / "copy.db"
    with open_journal(f"sqlite:///{copy}") as other:
        other.apply(take("copied"))
    with open_journal(f"sqlite:///{path}") as journal:
        journal.apply(take("a"))
        for name in ("journal.db-wal", "journal.db-shm"):
            (tmp_path / name).unlink()
        copy.replace(path)
        assert journal.apply(take("b")).stamp == Stamp(1, 2)
        with journal.reading() as reading:
            assert [lease.resource for lease in reading.where(Lease, {})] == ["b", "copied"]


def test_a_journal_that_is_not_there_is_named(journal: Journal) -> None:
    absent = Journal(journal.database, "absent", "identity")
    with pytest.raises(ObjectNotFoundError, match="absent"):
        absent.apply(take("a"))
    with pytest.raises(ObjectNotFoundError, match="absent"):
        absent.status()


def test_a_row_that_contradicts_another_is_the_journals_trouble(journal: Journal) -> None:
    row = {"journal": "main", "epoch": 1, "before": 0, "timeline": 0, "reason": "again", "began_s": 0.0}
    with pytest.raises(MalformedJournalError, match="contradicts itself"), journal.database.write() as held:
        held.execute(insert(EPOCH).values(row))
    assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_what_is_raised_within_a_transaction_rolls_it_back(journal: Journal) -> None:
    def lose_the_head() -> None:
        with journal.database.write() as connection:
            connection.execute(text("DELETE FROM head"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lose_the_head()
    assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_a_snapshot_stays_as_it_began_while_others_write(journal: Journal) -> None:
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
    """Let that many commits go without an answer, after or before they had their effect."""
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
def test_a_commit_without_an_answer_is_asked_for_again_and_has_one_effect(
    journal: Journal, applied: bool
) -> None:
    lost = _lose_commits(journal, 1, applied=applied)
    written = journal.apply(take("a"))
    assert (written.stamp, written.is_repeat) == (Stamp(1, 1), applied)
    assert entries(journal) == 1
    assert len(lost) == 1


def test_a_commit_that_never_gets_an_answer_is_unknown(journal: Journal) -> None:
    _lose_commits(journal, 100, applied=False)
    with pytest.raises(OutcomeUnknownError, match="it may have been applied"):
        journal.apply(take("a"))


def test_a_try_that_was_not_applied_does_not_hide_that_the_one_before_may_have_been(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as journal:
        other = sqlite3.connect(path, isolation_level=None)

        @event.listens_for(journal.database._engine, "commit")
        def _commit(connection: Connection) -> None:
            connection.connection.dbapi_connection.commit()
            other.execute("BEGIN IMMEDIATE")  # from now on every try is refused
            raise OperationalError("COMMIT", None, Exception("the disk gave no answer"))

        with pytest.raises(OutcomeUnknownError, match="it may have been applied"):
            journal.apply(take("a"))
        other.close()
        assert entries(journal) == 1


@pytest.mark.requires("postgres")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"port": 1}, "see that it runs and can be reached"),
        ({"host": "host.invalid"}, "see that it runs and can be reached"),
        ({"database": "absent"}, "create the database with `createdb`"),
        ({"username": "stranger"}, "the user and the password"),
    ],
)
def test_a_server_that_cannot_be_used_is_told_of_with_the_remedy(
    postgres: Server, change: dict[str, Any], words: str
) -> None:
    url = parse_url(postgres.url).set(password="secret", **change)
    with pytest.raises(JournalUnavailableError) as refused:
        open_journal(url.render_as_string(hide_password=False))
    assert words in str(refused.value)
    assert "nothing was applied" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.requires("postgres")
def test_a_wrong_password_is_told_of_and_not_shown(postgres: Server) -> None:
    postgres.run_sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    rules = Path(postgres.run_sql("SHOW hba_file"))
    before = rules.read_text()
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
    postgres.run_sql("SELECT pg_reload_conf()")
    try:
        url = parse_url(postgres.new_database("guarded")).set(username="guarded", password="secret")
        with pytest.raises(JournalUnavailableError, match="the user and the password") as refused:
            open_journal(url.render_as_string(hide_password=False))
        assert "secret" not in str(refused.value)
    finally:
        rules.write_text(before)
        postgres.run_sql("SELECT pg_reload_conf()")


@pytest.mark.requires("postgres")
def test_a_user_who_may_not_make_tables_is_told_so(postgres: Server) -> None:
    postgres.run_sql("CREATE ROLE reader LOGIN")
    url = parse_url(postgres.new_database("of_another")).set(username="reader")
    with pytest.raises(JournalUnavailableError, match="the right to make and to write tables"):
        open_journal(url.render_as_string())


@pytest.mark.requires("postgres")
def test_a_lock_that_another_session_keeps_is_not_waited_for_for_ever(postgres: Server) -> None:
    import psycopg

    url = postgres.new_database("kept") + "?connect_timeout=60"
    with open_journal(url, busy_s=QUICK) as journal, psycopg.connect(url) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        with pytest.raises(JournalUnavailableError, match="another process has held its lock"):
            journal.apply(take("a"))
        other.rollback()
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.requires("postgres")
def test_a_session_that_is_ended_amid_a_transaction_has_applied_nothing(postgres: Server) -> None:
    with open_journal(postgres.new_database("ended")) as journal:

        def write() -> None:
            with journal.database.write() as connection:
                connection.execute(LEASE.delete())
                end_sessions(postgres, "ended")
                connection.execute(LEASE.delete())

        with pytest.raises(TransactionUndoneError, match="nothing was applied"):
            write()
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.requires("postgres")
def test_a_transaction_that_the_server_took_back_is_tried_again(postgres: Server) -> None:
    with open_journal(postgres.new_database("taken_back")) as journal:
        ended: list[str] = []

        def end() -> None:
            if not ended:
                ended.append("taken back")
                end_sessions(postgres, "taken_back")

        with before_storing(journal, end):
            written = journal.apply(take("a"))
        assert (written.stamp, written.is_repeat) == (Stamp(1, 1), False)
        assert ended


@pytest.mark.requires("postgres")
def test_a_session_that_is_ended_at_its_commit_leaves_the_outcome_unknown_until_it_is_asked_for_again(
    postgres: Server,
) -> None:
    with open_journal(postgres.new_database("cut_off")) as journal:
        ended: list[str] = []

        @event.listens_for(journal.database._engine, "commit")
        def _commit(connection: Connection) -> None:
            if not ended:
                ended.append("commit")
                end_sessions(postgres, "cut_off")

        with pytest.raises(OutcomeUnknownError), journal.database.write() as connection:
            connection.execute(LEASE.delete())
        ended.clear()
        written = journal.apply(take("a"))
        assert (written.stamp, written.is_repeat) == (Stamp(1, 1), False)


@pytest.mark.requires("postgres")
def test_a_commit_that_the_server_answers_with_no_is_not_applied(postgres: Server) -> None:
    with open_journal(postgres.new_database("answered")) as journal:
        with journal.database.write() as connection:
            connection.execute(
                text("ALTER TABLE lease ADD CONSTRAINT one UNIQUE (holder) DEFERRABLE INITIALLY DEFERRED")
            )
        journal.apply(take("a"))
        with pytest.raises(MalformedJournalError, match="nothing was applied"):
            journal.apply(take("b"))
        assert entries(journal) == 1


@pytest.mark.requires("postgres")
def test_a_deadlock_is_tried_again(postgres: Server) -> None:
    import psycopg

    url = postgres.new_database("deadlock")
    postgres.run_sql("ALTER DATABASE deadlock SET deadlock_timeout = '10ms'")
    with open_journal(url) as journal, psycopg.connect(url) as other:
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'deadlock' AND wait_event_type = 'Lock'"
        )
        other.execute("SET deadlock_timeout = '1h'")  # the journal's transaction is the one that is ended
        met: list[object] = []

        def meet() -> None:
            if not met:
                met.append(other.execute("LOCK TABLE entry IN SHARE MODE"))
                waiting.start()
                while postgres.run_sql(waits) != "1":  # a session looks for a deadlock once, as it waits
                    pass

        def want_the_head() -> None:
            other.execute("SELECT * FROM head FOR UPDATE")
            other.rollback()

        waiting = threading.Thread(target=want_the_head)
        with before_storing(journal, meet):
            written = journal.apply(take("a"))
        waiting.join()
        assert (written.stamp, written.is_repeat) == (Stamp(1, 1), False)
        assert met


def end_sessions(server: Server, database: str) -> None:
    server.run_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")


@pytest.mark.integration
@pytest.mark.requires("postgres")
def test_a_restart_between_two_calls_is_not_noticed_and_a_stopped_server_is_told_of(tmp_path: Path) -> None:
    with primary(tmp_path / "server") as server, open_journal(server.url) as journal:
        journal.apply(take("a"))
        server.stop("immediate")
        with pytest.raises(JournalUnavailableError, match="nothing was applied"):
            journal.apply(take("b"))
        server.start()
        assert journal.apply(take("b")).stamp == Stamp(1, 2)
        server.stop()
        server.start()
        assert journal.status().stamp == Stamp(1, 2)


@pytest.mark.integration
@pytest.mark.requires("postgres")
def test_a_hot_standby_is_refused_as_primary_and_found_past_among_several_hosts(tmp_path: Path) -> None:
    with primary(tmp_path / "server") as server, open_journal(server.url) as journal:
        journal.apply(take("a"))
        standby = server.new_standby(tmp_path / "standby")
        try:
            with pytest.raises(JournalUnavailableError, match="a standby in LOCKGATE_OBSERVER_URLS"):
                open_journal(standby.url)
            hosts = f"host=127.0.0.1:{standby.port}&host=127.0.0.1:{server.port}"
            with open_journal(f"postgresql://lockgate@/lockgate?{hosts}") as found:
                assert found.apply(take("b")).stamp == Stamp(1, 2)
        finally:
            standby.stop("immediate")


def test_a_server_that_nobody_runs_is_told_of() -> None:
    with pytest.raises(LockgateError, match="see that it runs and can be reached"):
        open_journal(f"postgresql://lockgate@127.0.0.1:{free_port()}/lockgate")


def _on_checkout(journal: Journal, pragma: str) -> None:
    @event.listens_for(journal.database._engine, "checkout")
    def _checkout(connection: sqlite3.Connection, record: Any, proxy: Any) -> None:
        connection.execute(pragma).close()


def _ask(journal: Journal, question: str) -> Any:
    with journal.database.snapshot() as connection:
        return connection.execute(text(question)).scalar_one()
