"""A client reads at observers, and never sees a state older than one that it has seen."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event

from lockgate.storage_core.errors import (
    JournalUnavailableError,
    ObjectNotFoundError,
    StateLostError,
)
from lockgate.storage_core.journal import Reading, Stamp
from lockgate.storage_core.journal.observers.observer_pool import FIRST_PROBE_S
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import REST_S
from lockgate.storage_core.journal.session_token import SessionToken
from lockgate.storage_core.settings import load_settings
from tests.support.journal.observers import (
    FileObserver,
    ObserverWorld,
    figure,
    lose_after,
    server_and_rows,
    take,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


def test_a_client_reads_at_an_observer_that_has_caught_up_with_it(world: ObserverWorld) -> None:
    take(world.journal)
    world.tailer().poll()
    assert world.client().read(server_and_rows) == ("observer-0", 1)


def test_a_client_reads_its_own_writes_at_the_primary_while_the_observer_is_behind(
    world: ObserverWorld,
) -> None:
    tailer, client = world.tailer(), world.client()
    tailer.poll()
    take(world.journal)
    fallbacks = figure("observer_fallbacks_total")
    assert client.read(server_and_rows) == ("journal", 1)
    assert figure("observer_fallbacks_total") == fallbacks + 1
    tailer.poll()
    assert client.read(server_and_rows) == ("observer-0", 1)


def test_an_observer_that_catches_up_in_time_is_waited_for(world: ObserverWorld) -> None:
    tailer, client = world.tailer(), world.client()
    tailer.poll()
    take(world.journal)
    world.clock.meanwhile = tailer.poll
    waits = figure("observer_waits_total")
    assert client.read(server_and_rows) == ("observer-0", 1)
    assert figure("observer_waits_total") == waits + 1


def test_after_a_failed_wait_observers_are_queried_without_waiting_for_a_while(world: ObserverWorld) -> None:
    tailer, client = world.tailer(), world.client()
    tailer.poll()
    take(world.journal)
    client.read(server_and_rows)
    slept_s = world.clock.slept_s
    assert client.read(server_and_rows) == ("journal", 1)
    assert world.clock.slept_s == slept_s
    tailer.poll()
    assert client.read(server_and_rows) == ("observer-0", 1)
    take(world.journal)
    world.clock.now += REST_S
    client.read(server_and_rows)
    assert world.clock.slept_s > slept_s


def test_another_observer_that_has_caught_up_is_queried_before_any_wait(world: ObserverWorld) -> None:
    slow, fast = world.tailer(0), world.tailer(1)
    slow.poll()
    take(world.journal)
    fast.poll()
    client = world.client(observers=2)
    assert [client.read(server_and_rows) for _ in range(3)] == [("observer-1", 1)] * 3
    assert world.clock.slept_s == 0


def test_an_observer_that_stays_behind_is_asked_once_a_second_until_it_has_caught_up(
    world: ObserverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = world.tailer(0), world.tailer(1)
    slow.poll()
    take(world.journal)
    fast.poll()
    asked, reading = [], FileObserver.reading

    def ask(
        observer: FileObserver, stamps: Collection[Stamp]
    ) -> AbstractContextManager[tuple[Reading, Stamp]]:
        asked.append(Path(observer.name).stem)
        return reading(observer, stamps)

    monkeypatch.setattr(FileObserver, "reading", ask)
    client = world.client(observers=2)
    for _ in range(300):
        assert client.read(server_and_rows) == ("observer-1", 1)
        world.clock.now += 0.01
    assert asked.count("observer-0") <= 3 + 3  # in the first 50 ms, and then each second
    slow.poll()
    world.clock.now += FIRST_PROBE_S
    assert {client.read(server_and_rows)[0] for _ in range(2)} == {"observer-0", "observer-1"}


def test_observers_share_the_reads(world: ObserverWorld) -> None:
    for number in range(2):
        world.tailer(number).poll()
    client = world.client(observers=2)
    assert {client.read(server_and_rows)[0] for _ in range(2)} == {"observer-0", "observer-1"}


def test_a_new_client_reads_what_everyone_has_written_before(world: ObserverWorld) -> None:
    world.tailer().poll()
    take(world.another_process())
    assert world.client().read(server_and_rows) == ("journal", 1)


def test_a_client_may_read_an_older_state_until_its_next_msync(world: ObserverWorld) -> None:
    world.tailer().poll()
    client = world.client()
    assert client.read(server_and_rows) == ("observer-0", 0)
    take(world.another_process())
    assert client.read(server_and_rows) == ("observer-0", 0)
    assert client.msync() == Stamp(1, 1)
    assert client.read(server_and_rows) == ("journal", 1)


def test_a_client_that_syncs_before_each_read_reads_everyones_writes(world: ObserverWorld) -> None:
    world.tailer().poll()
    client, other = world.client(auto_msync_ms=0), world.another_process()
    for number in range(1, 4):
        take(other)
        assert client.read(server_and_rows)[1] == number


def test_a_client_syncs_when_its_last_contact_with_the_primary_is_too_old(world: ObserverWorld) -> None:
    world.tailer().poll()
    client, other = world.client(auto_msync_ms=5000), world.another_process()
    client.read(server_and_rows)
    take(other)
    world.clock.now += 4.9
    assert client.read(server_and_rows) == ("observer-0", 0)
    world.clock.now += 0.1
    assert client.read(server_and_rows) == ("journal", 1)


def test_a_client_with_a_token_reads_what_the_sender_has_seen_without_asking_the_primary(
    world: ObserverWorld,
) -> None:
    tailer = world.tailer()
    tailer.poll()
    take(world.journal)
    token = str(world.client().token)
    assert token == "main=1.1"
    receiver = world.client(journal=world.another_process())
    receiver.see(SessionToken.parse(token))
    world.clock.meanwhile = tailer.poll
    assert receiver.read(server_and_rows) == ("observer-0", 1)
    assert receiver.journal.seen_stamps.since_contact_s is None


def test_configured_clients_honour_a_stamp_given_on_the_command_line(
    world: ObserverWorld,
) -> None:
    take(world.journal)
    client = configured_reads(load_settings(journal_url=world.url), at_least="1.1")
    assert client is not None
    with client:
        assert str(client.token) == "main=1.1"
        assert client.read(server_and_rows) == ("journal", 1)
    assert configured_reads(load_settings(journal_url="none")) is None


def test_a_read_checks_the_stamp_of_the_same_state_it_reads(world: ObserverWorld) -> None:
    # A replica may go back: it is rebuilt, or its file is restored. A client that checks in one transaction
    # and reads in the next sees the past. This replica goes back when a second transaction begins in a read.
    take(world.journal)
    world.tailer().poll()
    client = world.client(journal=world.another_process())
    client.msync()
    begun = []

    def go_back(connection: Connection) -> None:
        begun.append(connection)
        if len(begun) == 2:
            with sqlite3.connect(world.file(0)) as copy:
                copy.execute("DELETE FROM lease")
                copy.execute("UPDATE head SET sequence = 0")
            copy.close()

    event.listen(Engine, "begin", go_back)
    try:
        assert client.read(server_and_rows) == ("observer-0", 1)
    finally:
        event.remove(Engine, "begin", go_back)


def test_a_missing_observer_fails_no_read_and_is_queried_again_after_a_while(
    world: ObserverWorld,
) -> None:
    client = world.client()
    assert client.read(server_and_rows) == ("journal", 0)
    world.tailer().poll()
    assert client.read(server_and_rows) == ("journal", 0)
    world.clock.now += FIRST_PROBE_S
    assert client.read(server_and_rows) == ("observer-0", 0)


def test_an_unreadable_replica_fails_no_read(world: ObserverWorld) -> None:
    world.file(0).write_bytes(b"no database at all" * 100)
    client = world.client()
    assert client.read(server_and_rows) == ("journal", 0)
    (status,) = client.observers()
    assert "observer-0" in (status.why_down or "")


def test_an_observer_of_another_journal_is_not_read(world: ObserverWorld, tmp_path: Path) -> None:
    other = ObserverWorld(tmp_path / "other")
    other.tailer().poll()
    other.close()
    (tmp_path / "other" / "observer-0.db").rename(world.file(0))
    client = world.client()
    assert client.read(server_and_rows) == ("journal", 0)
    (status,) = client.observers()
    assert "another journal" in (status.why_down or "")


def test_a_read_falls_back_to_the_primary_if_a_replica_dies_while_answering(world: ObserverWorld) -> None:
    world.tailer().poll()

    def ask(reading: Reading) -> str:
        who = server_and_rows(reading)[0]
        if who != "journal":
            raise JournalUnavailableError("the connection broke")
        return who

    assert world.client().read(ask) == "journal"


def test_an_error_of_the_query_itself_is_not_retried_elsewhere(world: ObserverWorld) -> None:
    world.tailer().poll()
    who = []

    def ask(reading: Reading) -> None:
        who.append(server_and_rows(reading)[0])
        raise ObjectNotFoundError("no such job")

    with pytest.raises(ObjectNotFoundError):
        world.client().read(ask)
    assert who == ["observer-0"]


def test_entries_lost_in_a_failover_are_reported_until_an_explicit_msync(world: ObserverWorld) -> None:
    client = world.client()
    for _ in range(3):
        take(world.journal)
    client.read(server_and_rows)
    lose_after(world.another_process(), 1)
    world.tailer().poll()
    for _ in range(2):
        with pytest.raises(StateLostError, match="msync"):
            client.read(server_and_rows)
    # A write in the new epoch does not hide that what was seen before is lost.
    stamp = take(world.journal)
    assert stamp.sequence == 2
    assert str(client.token) == f"main=1.3,main={stamp}"
    with pytest.raises(StateLostError):
        client.read(server_and_rows)
    assert client.msync() == stamp
    assert client.read(server_and_rows) == ("journal", 2)
    assert str(client.token) == f"main={stamp}"


def test_a_lost_stamp_is_reported_before_the_new_epoch_has_its_first_entry(world: ObserverWorld) -> None:
    client = world.client()
    for _ in range(3):
        take(world.journal)
    lose_after(world.another_process(), 1, new_epoch=False)
    with pytest.raises(StateLostError):
        client.read(server_and_rows)


def test_entries_that_survived_a_failover_can_still_be_read(world: ObserverWorld) -> None:
    tailer, client = world.tailer(), world.client()
    tailer.poll()
    take(world.journal)
    client.read(server_and_rows)
    lose_after(world.another_process(), 1)
    tailer.poll()
    assert client.read(server_and_rows) == ("observer-0", 1)
    assert re.fullmatch(r"main=\d+\.1", str(client.token))
    assert str(client.token) != "main=1.1"


def test_a_token_of_a_standby_is_refused_by_another_one_that_was_promoted_from_the_same_primary(
    world: ObserverWorld,
) -> None:
    client = world.client(0)
    take(world.journal)
    lose_after(world.another_process(), 1)
    take(world.journal)
    for number in ("1", "9" * 12):  # smaller and greater than the number of the standby that is asked
        client.msync()
        client.see(SessionToken.parse(f"main={number}7.2"))
        with pytest.raises(StateLostError):
            client.read(server_and_rows)


def test_a_primary_in_an_older_epoch_than_seen_is_not_read(world: ObserverWorld) -> None:
    client = world.client()
    client.see(SessionToken.parse("main=7.1"))
    with pytest.raises(StateLostError, match="old primary"):
        client.read(server_and_rows)


def test_a_client_reports_the_lag_of_each_observer(world: ObserverWorld) -> None:
    world.tailer(0).poll()
    for _ in range(2):
        take(world.journal)
        world.clock.now += 1.0
    world.tailer(1).poll()
    behind, current, missing = world.client(observers=3).observers()
    assert (behind.stamp, behind.behind_entries, behind.lag_s) == (Stamp(1, 0), 2, 2.0)
    assert (current.stamp, current.behind_entries, current.lag_s) == (Stamp(1, 2), 0, 0.0)
    assert missing.stamp is None
    assert "no such file" in (missing.why_down or "")
    assert figure("observer_lag_seconds", observer=behind.name) == 2.0


MOVES = st.lists(
    st.tuples(st.sampled_from(["write", "read", "poll", "msync", "pass token"]), st.integers(0, 1)),
    max_size=25,
)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(MOVES)
def test_no_client_goes_back_in_time_and_each_reads_its_own_writes(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    world = ObserverWorld(tmp_path_factory.mktemp("moves"))
    try:
        tailers = [world.tailer(number) for number in range(2)]
        journals = [world.another_process() for _ in range(2)]
        clients = [world.client(2, journal) for journal in journals]
        written, known, newest = 0, [0, 0], [Stamp(), Stamp()]
        for move, who in moves:
            if move == "write":
                take(journals[who])
                written = known[who] = written + 1
            elif move == "poll":
                tailers[who].poll()
            elif move == "msync":
                clients[who].msync()
                known[who] = written
            elif move == "pass token":
                clients[who].see(clients[1 - who].token)
                known[who] = max(known)
            else:
                rows = clients[who].read(server_and_rows)[1]
                assert known[who] <= rows <= written
                known[who] = rows
            assert journals[who].seen >= newest[who]
            newest[who] = journals[who].seen
    finally:
        world.close()
