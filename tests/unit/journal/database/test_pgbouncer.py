"""A journal behind pgbouncer, which gives each transaction or each client another session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import psycopg
import pytest

from lockgate.storage_core.errors import InvalidInputError, JournalUnavailableError
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.database.bulk import MANY
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.write.mutation import Mutation
from tests.support.journal.database import QUICK, entries, take
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Server

pytestmark = [pytest.mark.requires("postgres"), pytest.mark.requires("pgbouncer")]

_names = (f"pooled_{number}" for number in count(1))


@dataclass
class Pooled:
    """A database behind a pooler.

    Attributes:
        url: URL of the pooler.
        direct_url: URL of the server.
    """

    url: str
    direct_url: str


@pytest.fixture(
    params=[
        ("transaction", {}),  # as in Airflow's chart
        ("transaction", {"ignore_startup_parameters": "options"}),
        ("session", {}),
        ("session", {"ignore_startup_parameters": "options"}),
    ],
    ids=["transaction", "transaction-ignoring-options", "session", "session-ignoring-options"],
)
def pooled(request: pytest.FixtureRequest, postgres: Server) -> Iterator[Pooled]:
    mode, settings = request.param
    name = next(_names)
    direct = postgres.new_database(name)
    with pgbouncer(postgres, name, mode, **settings) as url:
        yield Pooled(url, direct)


def test_every_write_of_many_clients_is_applied_once(pooled: Pooled) -> None:
    """Sessions keep the prepared statements of other clients, under the names that each client counts."""
    clients, writes = 2, 20

    def write(client: int) -> None:
        with open_journal(pooled.url) as journal:
            for number in range(writes):
                journal.apply(take(f"{client}/{number}", "x" * (number % 3)))
                journal.status()

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(write, range(clients)))
    with open_journal(pooled.direct_url) as journal, journal.reading() as reading:
        assert journal.status().stamp.sequence == clients * writes
        assert len(reading.where(Lease, {})) == clients * writes


def test_the_schema_that_the_url_names_holds_the_journal(pooled: Pooled) -> None:
    with psycopg.connect(pooled.direct_url, autocommit=True) as server:
        server.execute("CREATE SCHEMA of_lockgate")
        query = "?options=-csearch_path%3Dof_lockgate"
        with open_journal(pooled.url + query) as journal:
            journal.apply(take("a"))
            journal.write([Mutation(op=take(str(number))) for number in range(MANY)])  # with COPY
            with open_journal(pooled.direct_url + query) as direct:
                assert direct.identity == journal.identity
                assert entries(direct) == 1 + MANY
        tables = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'head'"
        assert server.execute(tables).fetchall() == [("of_lockgate",)]


def test_a_wait_for_a_lock_is_limited_and_other_clients_keep_their_own_limit(pooled: Pooled) -> None:
    with open_journal(pooled.url, busy_s=QUICK) as journal, psycopg.connect(pooled.direct_url) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        with pytest.raises(JournalUnavailableError, match="another process has held its lock"):
            journal.apply(take("a"))
        other.rollback()
        journal.apply(take("a"))
    with ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(psycopg.connect(pooled.url))
            assert client.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_a_journal_without_a_pooler_prepares_its_statements(postgres: Server) -> None:
    with open_journal(postgres.new_database(next(_names))) as journal:
        journal.apply(take("a"))
        with journal.database.snapshot() as connection:
            prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements")
            assert prepared.scalar_one() > 0


def test_options_that_are_no_parameters_are_refused(postgres: Server) -> None:
    with pytest.raises(InvalidInputError, match="'-B 5' of its URL are not understood"):
        open_journal(postgres.url + "?options=-c%20lock_timeout%3D5%20-B%205")
