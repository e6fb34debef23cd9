"""Tests of reads with a real primary and a real streaming standby, when either fails."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import StateLostError
from lockgate.storage_core.journal import Journal, Reading, Stamp, open_journal
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.observers.observer_pool import LAST_PROBE_S
from lockgate.storage_core.journal.observers.process_reader import open_observer
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.session_token import SessionToken
from tests.support.commit.destination import ManualClock
from tests.support.journal.observers import SteppingClock, figure, take
from tests.support.postgres import UNSYNCED, Server, primary

pytestmark = [pytest.mark.integration, pytest.mark.requires("postgres")]

LONG_MS = 300_000.0


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the limit is reached only by a failing test."""
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit, "it did not come to be"
        time.sleep(0.01)


@dataclass
class Pair:
    """A primary, and a standby that is cloned from it on request."""

    root: Path
    primary: Server
    opened: ExitStack
    running: list[Server] = field(default_factory=list)

    def standby(self, **options: str) -> Server:
        cloned = self.primary.new_standby(self.root / f"standby-{len(self.running)}", **options)
        self.running.append(cloned)
        return cloned

    def stop(self, server: Server) -> None:
        server.stop("immediate")
        self.running.remove(server)

    def start(self, server: Server) -> None:
        server.start()
        self.running.append(server)

    def journal(self, *standbys: Server, clock: Clock | None = None) -> Journal:
        """Open the journal at the server that accepts writes."""
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self.primary, *standbys))
        url = f"postgresql://lockgate@/lockgate?{hosts}&target_session_attrs=read-write"
        return self.opened.enter_context(open_journal(url, clock=clock))

    def client(self, journal: Journal, *standbys: Server, **options: Any) -> Client:
        observers = [open_observer(server.url, journal) for server in standbys]
        return self.opened.enter_context(Client(journal, observers, **options))


@pytest.fixture
def pair() -> Iterator[Pair]:
    # Not below pytest's own directory, which each new run of pytest closes to other users.
    with (
        tempfile.TemporaryDirectory(prefix="lockgate-standby-") as root,
        primary(Path(root) / "primary", **UNSYNCED) as server,
    ):
        world = Pair(Path(root), server, ExitStack(), [server])
        try:
            with world.opened:
                yield world
        finally:
            if server not in world.running:
                server.start()  # `primary` stops it again
            for standby in [running for running in world.running if running is not server]:
                standby.stop("immediate")


def server_and_rows(reading: Reading) -> tuple[int | None, int]:
    """Return the port of the server that responds and its number of rows, one per entry here."""
    port = reading.connection.exec_driver_sql("SELECT inet_server_port()").scalar_one()
    return port, len(reading.where(Lease, {}))


def caught_up(client: Client) -> bool:
    return all(status.behind_entries == 0 for status in client.observers())


def test_reads_are_served_by_a_standby_and_include_the_clients_own_writes(pair: Pair) -> None:
    journal = pair.journal()
    take(journal)
    standby = pair.standby()
    client = pair.client(journal, standby, wait_ms=LONG_MS)
    for number in range(1, 6):
        assert client.read(server_and_rows) == (standby.port, number)
        take(journal)


MODES: dict[str, tuple[dict[str, Any], float, bool]] = {
    "routing by token": ({}, 0, False),
    "periodic, not due": ({"auto_msync_ms": 5_000}, 4, False),
    "periodic": ({"auto_msync_ms": 5_000}, 5, True),
    "always": ({"auto_msync_ms": 0}, 0, True),
    "always primary": ({"always_primary": True}, 0, True),
}
"""Options of a client, the seconds since its last contact, and whether it sees all without a token."""


def test_in_each_mode_a_client_with_a_third_partys_token_sees_no_past_state(pair: Pair) -> None:
    writer = pair.journal()
    take(writer)
    standby = pair.standby()
    clock = ManualClock()

    def new_client(options: dict[str, Any]) -> Client:
        return pair.client(pair.journal(clock=clock), standby, clock=clock, **options)

    clients = {mode: new_client(options) for mode, (options, _, _) in MODES.items()}
    standby.run_sql("SELECT pg_wal_replay_pause()")
    until(lambda: standby.run_sql("SELECT pg_get_wal_replay_pause_state()") == "paused")
    served = dict.fromkeys(MODES, standby.port) | {"always primary": pair.primary.port}
    assert {mode: client.read(server_and_rows) for mode, client in clients.items()} == {
        mode: (port, 1) for mode, port in served.items()
    }
    take(writer)
    token = str(pair.client(writer).token)
    began_s = clock.now
    for mode, (options, later_s, sees_all) in MODES.items():
        receiver = new_client(options)
        receiver.see(SessionToken.parse(token))
        assert receiver.read(server_and_rows) == (pair.primary.port, 2), mode
        clock.now = began_s + later_s
        assert clients[mode].read(server_and_rows)[1] == 1 + sees_all, mode
    assert new_client({}).read(server_and_rows)[1] == 2  # it begins with the primary's state
    clients["routing by token"].msync()
    assert clients["routing by token"].read(server_and_rows) == (pair.primary.port, 2)
    standby.run_sql("SELECT pg_wal_replay_resume()")
    until(lambda: caught_up(clients["always"]))
    clock.now += LAST_PROBE_S
    for mode, client in clients.items():
        client.msync()
        assert client.read(server_and_rows) == (served[mode], 2), mode


@pytest.mark.soak
def test_a_read_waits_for_a_standby_that_catches_up_in_time(pair: Pair) -> None:
    journal = pair.journal()
    take(journal)
    standby = pair.standby()
    standby.run_sql("SELECT pg_wal_replay_pause()")
    until(lambda: standby.run_sql("SELECT pg_get_wal_replay_pause_state()") == "paused")
    clock = SteppingClock(meanwhile=lambda: standby.run_sql("SELECT pg_wal_replay_resume()"))
    client = pair.client(journal, standby, wait_ms=LONG_MS, clock=clock)
    waits = figure("observer_waits_total")
    take(journal)
    assert client.read(server_and_rows) == (standby.port, 2)
    assert figure("observer_waits_total") == waits + 1


@pytest.mark.soak
def test_a_read_is_served_by_the_primary_if_the_standby_catches_up_too_late(pair: Pair) -> None:
    journal = pair.journal()
    before = take(journal)
    standby = pair.standby(recovery_min_apply_delay="1h")
    clock = SteppingClock()
    client = pair.client(journal, standby, wait_ms=50, clock=clock)
    take(journal)
    fallbacks = figure("observer_fallbacks_total")
    assert client.read(server_and_rows) == (pair.primary.port, 2)
    assert clock.slept_s == pytest.approx(0.050)
    assert figure("observer_fallbacks_total") == fallbacks + 1
    # A client that has seen only the standby's entries is served there, with an older state than others saw.
    other = pair.client(pair.journal(), standby)
    other.see(SessionToken.of("main", [before]))
    assert other.read(server_and_rows) == (standby.port, 1)
    other.msync()
    assert other.read(server_and_rows) == (pair.primary.port, 2)


@pytest.mark.soak
def test_a_read_at_a_replaying_standby_sees_one_consistent_state(pair: Pair) -> None:
    journal = pair.journal()
    take(journal)
    standby = pair.standby()
    client = pair.client(journal, standby, wait_ms=LONG_MS)
    watcher = pair.client(journal, standby)

    def ask(reading: Reading) -> tuple[int, int, Stamp]:
        before = server_and_rows(reading)[1]
        take(journal)
        until(lambda: caught_up(watcher))
        return before, server_and_rows(reading)[1], reading.status().stamp

    assert client.read(ask) == (1, 1, Stamp(1, 1))


@pytest.mark.soak
def test_reads_continue_when_a_standby_is_killed_and_use_it_again_after_its_restart(pair: Pair) -> None:
    journal = pair.journal()
    take(journal)
    standby = pair.standby()
    clock = ManualClock()
    client = pair.client(journal, standby, clock=clock)
    until(lambda: caught_up(client))
    assert client.read(server_and_rows) == (standby.port, 1)
    pair.stop(standby)
    for number in range(2, 5):
        take(journal)
        assert client.read(server_and_rows) == (pair.primary.port, number)
        clock.now += LAST_PROBE_S
    pair.start(standby)
    until(lambda: caught_up(client))
    clock.now += LAST_PROBE_S
    assert client.read(server_and_rows) == (standby.port, 4)


@pytest.mark.soak
def test_the_primary_serves_a_read_whose_standby_is_killed_during_the_response(pair: Pair) -> None:
    journal = pair.journal()
    take(journal)
    standby = pair.standby()
    client = pair.client(journal, standby)
    until(lambda: caught_up(client))

    def ask(reading: Reading) -> tuple[int | None, int]:
        if server_and_rows(reading)[0] == standby.port:
            pair.stop(standby)
        return server_and_rows(reading)

    assert client.read(ask) == (pair.primary.port, 1)


@pytest.mark.soak
def test_the_primary_serves_a_read_whose_standby_hangs_during_the_response(pair: Pair) -> None:
    journal = pair.journal()
    take(journal)
    standby = pair.standby()
    clock = ManualClock()
    client = pair.client(journal, standby, clock=clock)
    until(lambda: caught_up(client))
    stopped: list[int] = []

    def ask(reading: Reading) -> tuple[int | None, int]:
        if server_and_rows(reading)[0] == standby.port:
            server = reading.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            os.kill(server, signal.SIGSTOP)
            stopped.append(server)
        return server_and_rows(reading)

    try:
        assert client.read(ask) == (pair.primary.port, 1)
        assert client.read(server_and_rows) == (pair.primary.port, 1)
        (status,) = client.observers()  # the client still asks it: another process of the standby responds
        assert status.behind_entries == 0
        assert "has sent nothing for 5 s" in (status.why_down or "")
        clock.now += LAST_PROBE_S
        assert client.read(server_and_rows) == (standby.port, 1)
    finally:
        for server in stopped:
            os.kill(server, signal.SIGCONT)
    assert len(stopped) == 1


@pytest.mark.soak
def test_a_promoted_standby_continues_in_a_new_epoch_and_surviving_entries_stay_readable(pair: Pair) -> None:
    standby = pair.standby()
    journal = pair.journal(standby)
    client = pair.client(journal, standby, clock=ManualClock())
    for _ in range(3):
        take(journal)
    until(lambda: caught_up(client))
    assert client.read(server_and_rows) == (standby.port, 3)
    pair.stop(pair.primary)
    standby.promote()
    assert client.read(server_and_rows) == (standby.port, 3)
    stamp = take(journal)
    assert (stamp.epoch > 1, stamp.sequence) == (True, 4)
    assert client.read(server_and_rows) == (standby.port, 4)
    assert str(client.token) == f"main={stamp}"
    (status,) = client.observers()
    assert "it was promoted" in (status.why_down or "")


@pytest.mark.soak
def test_entries_lost_in_a_promotion_are_reported_until_an_explicit_msync(pair: Pair) -> None:
    standby = pair.standby()
    journal, survivor = pair.journal(standby), pair.journal(standby)
    client = pair.client(journal, standby, clock=ManualClock())
    kept = take(journal)
    until(lambda: caught_up(client))
    pair.stop(standby)
    for _ in range(2):
        take(journal)
    assert client.read(server_and_rows) == (pair.primary.port, 3)
    pair.stop(pair.primary)
    pair.start(standby)
    standby.promote()
    # Before and after the first entry of the new epoch, which reuses a lost number.
    for _ in range(3):
        with pytest.raises(StateLostError, match="msync"):
            client.read(server_and_rows)
        take(survivor)
    assert (survivor.seen.epoch > 1, survivor.seen.sequence) == (True, 4)
    other = pair.client(survivor, standby, clock=ManualClock())
    other.see(SessionToken.of("main", [kept]))
    assert other.read(server_and_rows) == (standby.port, 4)
    assert client.msync() == survivor.seen
    assert client.read(server_and_rows) == (standby.port, 4)


@pytest.mark.soak
def test_of_the_addresses_of_one_name_the_primary_is_used(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = pair.standby()
    standby.stop()
    standby.port, standby.options["listen_addresses"] = pair.primary.port, "127.0.0.2"
    standby.start()
    resolve = socket.getaddrinfo

    def both(host: str, *rest: Any, **options: Any) -> list[Any]:
        addresses = ("127.0.0.2", "127.0.0.1") if host == "journal.example" else (host,)
        return [found for address in addresses for found in resolve(address, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    url = pair.primary.url.replace("127.0.0.1", "journal.example")
    take(pair.opened.enter_context(open_journal(url)))


@pytest.mark.soak
def test_a_process_that_moves_from_one_promoted_standby_to_another_writes_and_reads_nothing(
    pair: Pair,
) -> None:
    """Both have the same timeline, because neither knows of the other."""
    one, other = pair.standby(), pair.standby()
    journal = pair.journal(one, other)
    client = pair.client(journal, one, other, clock=ManualClock())
    take(journal)
    until(lambda: caught_up(client))
    pair.stop(pair.primary)
    one.promote()
    stamp = take(journal)
    pair.stop(one)
    other.promote()
    for _ in range(2):  # before and after the first entry of the other standby's epoch
        for call in (take, Journal.status):
            with pytest.raises(StateLostError, match=f"has no epoch {stamp.epoch}"):
                call(journal)
        with open_journal(other.url) as moved:
            found = take(moved)
        assert found.epoch not in {1, stamp.epoch}
    assert found.sequence == 3
