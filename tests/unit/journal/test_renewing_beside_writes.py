"""Concurrent renewals and writes of the same leases on PostgreSQL see each other and never deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from lockgate.storage_core.errors import LeaseHeldError, LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Leases, Mutation, Refused, Stamp, open_journal
from lockgate.storage_core.journal.entries.lease_entries import FreeLease
from tests.support.commit.destination import dying
from tests.support.postgres import Server

pytestmark = pytest.mark.requires("postgres")


@pytest.fixture
def url(postgres: Server, request: pytest.FixtureRequest) -> str:
    return postgres.new_database(request.node.name[:50])


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    with open_journal(url, busy_s=300) as opened:
        yield opened


def wait_until_blocked(server: Server, url: str, count: int, thread: threading.Thread | None = None) -> None:
    """Wait until the given number of the journal's sessions wait for a lock, or a thread has ended."""
    question = (
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{url.rpartition('/')[2]}' "
        "AND application_name = 'lockgate' AND wait_event_type = 'Lock'"
    )
    while int(server.run_sql(question)) < count and (thread is None or thread.is_alive()):
        pass


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start a call in a thread; return the thread, and the list that gets the result or the error."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except LockgateError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def take(journal: Journal, *names: str) -> dict[str, Stamp]:
    leases = Leases(journal)
    return {name: leases.take(name, "me", purpose="write", soft_s=3600, hard_s=7200) for name in names}


def test_a_renewal_and_a_write_of_the_same_leases_wait_for_each_other_and_never_deadlock(
    postgres: Server, url: str, journal: Journal
) -> None:
    stamps = take(journal, "b", "a", "c")
    leases = Leases(journal)
    frees = [Mutation(op=FreeLease(resource=name, stamp=stamps[name])) for name in ("a", "b")]
    passed: list[str] = []
    FAILPOINTS.observer = dying(passed.append)
    try:
        with psycopg.connect(url) as other:
            other.execute("SELECT 1 FROM holder FOR UPDATE")
            writing, freed = in_thread(lambda: journal.write(frees))
            wait_until_blocked(postgres, url, 1)
            # It drops "c", so that it also writes to a lease's row.
            renewing, lost = in_thread(lambda: leases.renew("me", {"a": stamps["a"], "b": stamps["b"]}))
            wait_until_blocked(postgres, url, 2)
        writing.join()
        renewing.join()
    finally:
        FAILPOINTS.observer = None

    ((*outcomes,),) = freed
    assert [isinstance(outcome, Refused) for outcome in outcomes] == [False, False]
    assert [sorted(message) for message in lost] == [["a", "b"]]
    assert [passed.count(f"idle.journal-{verb}.before") for verb in ("write", "renew")] == [1, 1]


def test_a_recovery_beside_a_renewal_that_is_not_yet_committed_is_refused(
    postgres: Server, url: str, journal: Journal
) -> None:
    take(journal, "a")
    leases = Leases(journal)
    view = leases.look("a")
    assert view is not None
    with psycopg.connect(url) as renewal:
        renewal.execute("UPDATE holder SET renewed_s = extract(epoch FROM clock_timestamp()) + 1")
        taking, taken = in_thread(
            lambda: leases.take("a", "you", purpose="recover", soft_s=1, hard_s=2, seen=view.lease)
        )
        wait_until_blocked(postgres, url, 1, taking)
    taking.join()
    assert [type(result) for result in taken] == [LeaseHeldError]
