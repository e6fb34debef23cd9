"""A PostgreSQL server that would lose acknowledged entries is refused, or made to keep them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal import Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.restore import open_survivor
from lockgate.storage_core.journal.write.head import lock_head
from tests.support.journal.database import entries, take
from tests.support.postgres import Server, primary

pytestmark = pytest.mark.requires("postgres")


@pytest.fixture(scope="module")
def careless() -> Iterator[Server]:
    """Yield a server that syncs nothing by itself: a crash loses what was written in the last ten seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="lockgate-careless-") as root,
        primary(Path(root) / "primary", synchronous_commit="off", wal_writer_delay="10s") as server,
    ):
        yield server


def test_acknowledged_entries_survive_a_crash_of_a_server_without_synchronous_commit(
    careless: Server,
) -> None:
    url = careless.new_database("crashed")
    with open_journal(url) as journal:
        stamps = [journal.apply(take(name)).stamp for name in ("a", "b", "c")]
        identity = journal.identity
        careless.stop("immediate")
    careless.start()
    with open_journal(url) as journal:
        assert (journal.identity, journal.status().stamp) == (identity, Stamp(1, 3))
        assert [journal.apply(take("d")).stamp, *stamps] == [Stamp(1, 4), *stamps]


@pytest.mark.parametrize("source", ["role", "reload"])
def test_synchronous_commit_is_on_whoever_turned_it_off(postgres: Server, source: str) -> None:
    name = f"asynchronous_by_{source}"
    url = postgres.new_database(name)
    if source == "role":
        postgres.run_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with open_journal(url) as journal, journal.database.write() as connection:
        if source == "reload":
            connection.exec_driver_sql("SET SESSION synchronous_commit = off")
        lock_head(connection, journal.database, journal.known)
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_another_choice_of_synchronous_commit_is_kept(postgres: Server) -> None:
    url = postgres.new_database("commits_locally")
    postgres.run_sql("ALTER DATABASE commits_locally SET synchronous_commit = local")
    with open_journal(url) as journal, journal.database.write() as connection:
        lock_head(connection, journal.database, journal.known)
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "local"


def test_a_server_without_fsync_is_refused_and_nothing_is_created() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lockgate-unsynced-") as root,
        primary(Path(root) / "primary", fsync="off") as server,
    ):
        with pytest.raises(InvalidInputError, match=r"fsync is off.*set fsync = on.*may_lose_entries"):
            open_journal(server.url)
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert server.run_sql(tables, "lockgate") == "0"

        allowed = f"{server.url}?options=-c%20lockgate.may_lose_entries%3Don"
        with open_journal(allowed) as journal:
            journal.apply(take("a"))
        with open_survivor(server.url, "main") as journal:  # it only reads
            assert entries(journal) == 1
