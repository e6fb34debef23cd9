"""A reader that polls for greater sequence numbers sees every entry, even one that commits late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.entries.claim_entries import ClaimName
from tests.support.journal.write_steps import before_storing
from tests.support.postgres import Server
from tests.support.processes.drivers import PROCESSES

WRITERS: Final = 4
WRITES: Final = 30
PATIENCE_S: Final = 120.0


def claim(name: str) -> ClaimName:
    return ClaimName(store="s3://a", name=name, body="")


def poll(journal: Journal, last: int) -> list[int]:
    with journal.reading() as reading:
        return [entry.sequence for entry in reading.entries(last, 1_000)]


def write_many(url: str, writer: int) -> None:
    with open_journal(url) as journal:
        for number in range(WRITES):
            journal.apply(claim(f"{writer}-{number}"))


def test_a_reader_polling_during_concurrent_writes_misses_no_entry(
    journal: Journal, journal_url: str
) -> None:
    writers = [PROCESSES.Process(target=write_many, args=(journal_url, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    seen: list[int] = []
    try:
        are_running = True
        while are_running:
            are_running = any(writer.is_alive() for writer in writers)  # before the last poll
            seen += poll(journal, seen[-1] if seen else 0)
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert seen == list(range(1, WRITERS * WRITES + 1))


@contextmanager
def paused_before_storing(journal: Journal) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Pause a writer between numbering and storing its entry, and signal it."""
    is_there, may_go = threading.Event(), threading.Event()

    def pause() -> None:
        is_there.set()
        assert may_go.wait(PATIENCE_S)

    with before_storing(journal, pause):
        try:
            yield is_there, may_go
        finally:
            may_go.set()


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.005)


@pytest.mark.requires("postgres")
def test_a_reader_does_not_skip_an_entry_that_commits_late(postgres: Server) -> None:
    url = postgres.new_database("overtaken")
    with (
        open_journal(url) as slow,
        open_journal(url, busy_s=PATIENCE_S) as fast,
        open_journal(url) as reader,
    ):
        slow.apply(claim("first"))
        with paused_before_storing(slow) as (is_there, may_go):
            late = threading.Thread(target=lambda: slow.apply(claim("late")))
            quick = threading.Thread(target=lambda: fast.apply(claim("quick")))
            late.start()
            assert is_there.wait(PATIENCE_S)
            quick.start()
            waiting = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            wait_until(lambda: not quick.is_alive() or postgres.run_sql(waiting, "overtaken") == "1")
            seen = poll(reader, 0)
            may_go.set()
            late.join()
            quick.join()
        seen += poll(reader, seen[-1])
    assert seen == [1, 2, 3]
