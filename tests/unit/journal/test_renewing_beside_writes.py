"""A concurrent renewal and write of the same leases on PostgreSQL never deadlock."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Leases, Mutation, Refused, open_journal
from lockgate.storage_core.journal.entries.leases import FreeLease
from tests.support.commit.destination import dying
from tests.support.postgres import Server

pytestmark = pytest.mark.requires("postgres")


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.new_database("renewing_beside_writes")


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    with open_journal(url, busy_s=300) as opened:
        yield opened


def wait_until_blocked(server: Server, count: int) -> None:
    """Wait until the given number of the journal's sessions wait for a lock."""
    question = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = 'renewing_beside_writes' "
        "AND application_name = 'lockgate' AND wait_event_type = 'Lock'"
    )
    while int(server.run_sql(question)) < count:
        pass


def test_a_renewal_locks_leases_in_the_same_order_as_a_write(
    postgres: Server, url: str, journal: Journal
) -> None:
    leases = Leases(journal)
    stamps = {
        name: leases.take(name, "me", purpose="write", soft_s=3600, hard_s=7200)
        for name in ("b", "a")  # in the order of the table, which is the reverse of a write's order
    }
    freed: list[object] = []
    lost: dict[str, str] = {}
    writing = threading.Thread(
        target=lambda: freed.extend(
            journal.write([Mutation(op=FreeLease(resource=name, stamp=stamps[name])) for name in stamps])
        )
    )
    renewing = threading.Thread(target=lambda: lost.update(leases.renew("me", stamps)))
    passed: list[str] = []
    FAILPOINTS.observer = dying(passed.append)
    try:
        with psycopg.connect(url) as other:
            other.execute("SELECT 1 FROM lease WHERE resource = 'a' FOR UPDATE")
            writing.start()
            wait_until_blocked(postgres, 1)
            renewing.start()
            wait_until_blocked(postgres, 2)
        writing.join()
        renewing.join()
    finally:
        FAILPOINTS.observer = None

    assert [isinstance(outcome, Refused) for outcome in freed] == [False, False]
    assert sorted(lost) == ["a", "b"]
    assert [passed.count(f"idle.journal-{verb}.before") for verb in ("write", "renew")] == [1, 1]
