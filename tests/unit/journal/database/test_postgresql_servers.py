"""Errors of an unusable PostgreSQL server state what was applied and name the remedy."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    MalformedJournalError,
    OutcomeUnknownError,
)
from lockgate.storage_core.journal import Stamp, open_journal
from lockgate.storage_core.journal.database import engines
from lockgate.storage_core.journal.database.database import parse_url
from lockgate.storage_core.journal.database.driver_errors import TransactionUndoneError
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.lease_entries import Lease
from tests.support.journal.database import QUICK, entries, take
from tests.support.journal.forgetful_proxy import forgetful_proxy
from tests.support.journal.write_steps import before_storing
from tests.support.postgres import Server, free_port, primary


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
def test_an_unusable_server_is_reported_with_the_remedy(
    postgres: Server, change: dict[str, Any], words: str
) -> None:
    url = parse_url(postgres.url).set(password="secret", **change)
    with pytest.raises(JournalUnavailableError) as refused:
        open_journal(url.render_as_string(hide_password=False))
    assert words in str(refused.value)
    assert "nothing was applied" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.requires("postgres")
def test_a_wrong_password_is_reported_and_not_shown(postgres: Server) -> None:
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
def test_a_user_without_permission_to_create_tables_gets_an_error(postgres: Server) -> None:
    postgres.run_sql("CREATE ROLE reader LOGIN")
    url = parse_url(postgres.new_database("of_another")).set(username="reader")
    with pytest.raises(JournalUnavailableError, match="the right to make and to write tables"):
        open_journal(url.render_as_string())


@pytest.mark.requires("postgres")
def test_a_wait_for_a_lock_of_another_session_is_limited(postgres: Server) -> None:
    import psycopg

    url = postgres.new_database("kept") + "?connect_timeout=60"
    with open_journal(url, busy_s=QUICK) as journal, psycopg.connect(url) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        with pytest.raises(JournalUnavailableError, match="another process has held its lock"):
            journal.apply(take("a"))
        other.rollback()
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.requires("postgres")
def test_a_session_terminated_during_a_transaction_has_applied_nothing(postgres: Server) -> None:
    with open_journal(postgres.new_database("ended")) as journal:

        def write() -> None:
            with journal.database.write() as connection:
                connection.execute(table_of(Lease).delete())
                end_sessions(postgres, "ended")
                connection.execute(table_of(Lease).delete())

        with pytest.raises(TransactionUndoneError, match="nothing was applied"):
            write()
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.requires("postgres")
def test_a_transaction_rolled_back_by_the_server_is_retried(postgres: Server) -> None:
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
def test_a_session_terminated_at_its_commit_leaves_the_outcome_unknown_until_the_request_is_retried(
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
            connection.execute(table_of(Lease).delete())
        ended.clear()
        written = journal.apply(take("a"))
        assert (written.stamp, written.is_repeat) == (Stamp(1, 1), False)


@pytest.mark.requires("postgres")
def test_a_commit_that_the_server_refuses_is_not_applied(postgres: Server) -> None:
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
def test_a_transaction_is_retried_after_a_deadlock(postgres: Server) -> None:
    import psycopg

    url = postgres.new_database("deadlock")
    postgres.run_sql("ALTER DATABASE deadlock SET deadlock_timeout = '10ms'")
    with open_journal(url) as journal, psycopg.connect(url) as other:
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'deadlock' AND wait_event_type = 'Lock'"
        )
        other.execute(
            "SET deadlock_timeout = '1h'"
        )  # so the journal's transaction is the victim of the deadlock
        met: list[object] = []

        def meet() -> None:
            if not met:
                met.append(other.execute("LOCK TABLE entry IN SHARE MODE"))
                waiting.start()
                while postgres.run_sql(waits) != "1":  # a session checks for a deadlock once while it waits
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
def test_a_restart_between_two_calls_has_no_effect_and_a_stopped_server_is_reported(tmp_path: Path) -> None:
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
def test_a_hot_standby_is_refused_as_primary_and_skipped_among_several_hosts(tmp_path: Path) -> None:
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


@pytest.mark.requires("postgres")
def test_idle_connections_dropped_silently_by_the_server_fail_no_write_and_no_read(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more such connections than a write has tries: a failover may break every one in the pool."""
    monkeypatch.setattr(engines, "RESTED_S", 0.0)
    url = parse_url(postgres.new_database("left"))
    with (
        forgetful_proxy(postgres.port) as proxy,
        open_journal(url.set(port=proxy.port).render_as_string()) as journal,
    ):

        def leave_at_rest() -> None:
            with ExitStack() as held:
                for _ in range(5):
                    held.enter_context(journal.reading()).status()
            proxy.forget()

        leave_at_rest()
        assert journal.apply(take("a")).stamp == Stamp(1, 1)
        leave_at_rest()
        assert journal.status().stamp == Stamp(1, 1)


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_store_every_text_is_refused(postgres: Server, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgres.run_sql(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE 'C' ENCODING '{encoding}'")
    with pytest.raises(InvalidInputError, match=f"its encoding {encoding} lacks.*createdb -E UTF8"):
        open_journal(postgres.url_of(name))


@pytest.mark.requires("postgres")
def test_texts_are_stored_correctly_whatever_encoding_the_environment_names(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with open_journal(postgres.new_database("encoded")) as journal:
        journal.apply(take("漢字 🦊"))
        with journal.reading() as reading:
            assert [lease.resource for lease in reading.where(Lease, {})] == ["漢字 🦊"]


def test_a_server_that_is_not_running_is_reported() -> None:
    with pytest.raises(LockgateError, match="see that it runs and can be reached"):
        open_journal(f"postgresql://lockgate@127.0.0.1:{free_port()}/lockgate")
