"""Errors of an unusable PostgreSQL server state what was applied and name the remedy."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
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
from lockgate.storage_core.journal.database import database, postgresql_engine
from lockgate.storage_core.journal.database.database import parse_url
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
def test_a_statement_that_takes_longer_than_the_role_allows_names_the_limit(postgres: Server) -> None:
    import psycopg

    url = postgres.new_database("hurried")
    postgres.run_sql("ALTER DATABASE hurried SET statement_timeout = '200ms'")
    with open_journal(url) as journal, psycopg.connect(url) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        with pytest.raises(JournalUnavailableError, match=r"raise the limit .* statement_timeout"):
            journal.apply(take("a"))
        other.rollback()
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.requires("postgres")
def test_a_renamed_column_is_reported_as_tables_of_another_program(postgres: Server) -> None:
    with open_journal(postgres.new_database("renamed")) as journal:
        postgres.run_sql("ALTER TABLE lease RENAME COLUMN detail TO details", "renamed")
        with pytest.raises(MalformedJournalError, match="not as this program made them"):
            journal.apply(take("a"))


@pytest.mark.requires("postgres")
def test_a_thread_waits_for_a_connection_of_its_process_if_the_role_may_open_no_more(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run_sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 1")
    postgres.new_database("limited")
    postgres.run_sql("ALTER DATABASE limited OWNER TO limited")
    postgres.run_sql("ALTER SCHEMA public OWNER TO limited", "limited")
    url = parse_url(postgres.url_of("limited")).set(username="limited").render_as_string()
    is_refused, held = threading.Event(), ExitStack()
    monkeypatch.setattr(database, "sleep", lambda _: (is_refused.set(), held.close()))
    with open_journal(url) as journal, ThreadPoolExecutor(1) as other:
        held.enter_context(journal.reading())
        assert other.submit(journal.status).result().stamp == Stamp(1, 0)
        assert is_refused.is_set()
        with pytest.raises(JournalUnavailableError, match="raise CONNECTION LIMIT"):
            open_journal(url)


@pytest.mark.requires("postgres")
def test_a_primary_that_hangs_is_given_up_after_a_limit(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SILENCE_S", 1.0)
    url = parse_url(postgres.new_database("hangs"))
    with (
        forgetful_proxy(postgres.port) as proxy,
        open_journal(url.set(port=proxy.port).render_as_string()) as journal,
    ):
        journal.apply(take("a"))

        def hang() -> None:
            proxy.hangs = True

        with before_storing(journal, hang), pytest.raises(JournalUnavailableError) as given_up:
            journal.apply(take("b"))
        assert "the server has sent nothing for 1 s; nothing was applied" in str(given_up.value)
        proxy.hangs = False
        assert journal.apply(take("b")).stamp == Stamp(1, 2)


@pytest.mark.soak
@pytest.mark.integration
@pytest.mark.requires("postgres")
def test_a_primary_whose_processes_are_all_stopped_is_given_up_and_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SILENCE_S", 1.0)
    with primary(tmp_path / "server") as server, open_journal(server.url, busy_s=2.0) as journal:
        journal.apply(take("a"))
        postmaster = psutil.Process(int((server.root / "data/postmaster.pid").read_text().split()[0]))
        stopped = [postmaster, *postmaster.children()]
        for process in stopped:
            process.suspend()
        try:
            for call in (journal.status, lambda: journal.apply(take("b")), lambda: open_journal(server.url)):
                with pytest.raises(JournalUnavailableError, match="nothing was applied"):
                    call()
        finally:
            for process in stopped:
                process.resume()
        assert journal.apply(take("b")).stamp == Stamp(1, 2)


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


def end_sessions(server: Server, database: str) -> None:
    server.run_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")


@pytest.mark.soak
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
    monkeypatch.setattr(postgresql_engine, "RESTED_S", 0.0)
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
def test_a_database_that_cannot_store_every_text_is_refused(postgres: Server) -> None:
    postgres.run_sql("CREATE DATABASE in_latin1 TEMPLATE template0 LOCALE 'C' ENCODING 'LATIN1'")
    with pytest.raises(InvalidInputError, match=r"its encoding LATIN1 lacks.*createdb -E UTF8"):
        open_journal(postgres.url_of("in_latin1"))


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
