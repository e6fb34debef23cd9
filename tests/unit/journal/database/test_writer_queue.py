"""Processes that write to one SQLite file take turns: each starts, each writes, and no wait is unlimited."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.database import writer_queue
from lockgate.storage_core.journal.database.writer_queue import WriterQueue
from lockgate.storage_core.journal.entries.rows import Lease
from tests.support.journal.database import QUICK, take
from tests.support.soak import rounds

WRITERS: Final = rounds(8, 50)
ENTRIES: Final = WRITERS * rounds(25, 100)
FACTOR: Final = 2
"""A writer may write this many times as often as another, if both write without a pause."""


def test_every_writer_of_one_sqlite_file_starts_and_none_writes_far_more_than_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    program = [
        sys.executable,
        "-m",
        "tests.support.processes.sqlite_writers",
        url,
        str(WRITERS),
        str(ENTRIES),
    ]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert "is locked" not in done.stderr
    assert done.returncode == 0, done.stderr
    with open_journal(url) as journal, journal.reading() as reading:
        leases = reading.where(Lease, {})
    written = Counter(lease.resource.partition("/")[0] for lease in leases if lease.sequence <= ENTRIES)
    assert len(written) == WRITERS
    assert max(written.values()) <= FACTOR * min(written.values()), written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as opened:
        yield opened


def test_a_writer_that_stops_in_the_queue_delays_another_process_once(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "STALL_S", QUICK)
    with WriterQueue(path, "other").turn():
        journal.apply(take("a"))
        monkeypatch.setattr(writer_queue, "STALL_S", 60.0)
        assert journal.apply(take("b")).stamp == Stamp(1, 2)


def test_a_process_that_stops_in_a_transaction_is_named(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "STALL_S", QUICK)
    with WriterQueue(path, "other").turn():
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        words = f"nothing was applied; process {os.getpid()} has held its lock for too long"
        with pytest.raises(JournalUnavailableError, match=words):
            journal.apply(take("a"))
        other.close()
    assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_too_many_transactions_before_one_are_reported(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "QUEUE_S", QUICK)
    words = "1 transactions .* nothing was applied; .* from fewer processes"
    with WriterQueue(path, "other").turn(), pytest.raises(JournalUnavailableError, match=words):
        journal.apply(take("a"))
    assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_the_place_of_a_killed_process_is_free_although_its_fork_lives(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "STALL_S", 60.0)
    monkeypatch.setattr(writer_queue, "QUEUE_S", 10.0)
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        with WriterQueue(path, "other").turn():
            if child := os.fork():
                os.write(writes, f"{child}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
    os.waitpid(parent, 0)
    child = int(os.read(reads, 100))
    try:
        assert journal.apply(take("a")).stamp == Stamp(1, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reads)
        os.close(writes)


def test_the_queue_has_the_rights_of_the_database(path: Path, journal: Journal) -> None:
    queue = path.with_name("journal.db-queue")
    queue.unlink(missing_ok=True)
    path.chmod(0o660)
    journal.apply(take("a"))
    assert stat.S_IMODE(queue.stat().st_mode) == 0o660
