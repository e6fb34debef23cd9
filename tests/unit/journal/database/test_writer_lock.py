"""Processes that write to one SQLite file take turns: each starts, each writes, and no wait is unlimited."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any, Final

import pytest

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.database import writer_lock
from lockgate.storage_core.journal.entries.lease_entries import Lease
from tests.support.journal.database import QUICK, take
from tests.support.soak import rounds

WRITERS: Final = rounds(10, 50)
ENTRIES: Final = WRITERS * rounds(25, 100)
FACTOR: Final = 5
"""A writer may write this many times as often as another, if none pauses."""
TRIES: Final = 8
"""A busy machine lets some processes run less often than others, whatever the queue does."""


def test_many_writers_of_one_sqlite_file_all_start_and_none_starves(tmp_path: Path) -> None:
    shares = [_share(tmp_path / "0.db")]
    while max(shares[-1]) > FACTOR * min(shares[-1]) and len(shares) < TRIES:
        shares.append(_share(tmp_path / f"{len(shares)}.db"))
    assert max(shares[-1]) <= FACTOR * min(shares[-1]), shares


def _share(path: Path) -> list[int]:
    """Return how many of the first entries each of the writers has written."""
    program = [sys.executable, "-m", "tests.support.processes.sqlite_writers", f"sqlite:///{path}"]
    done = subprocess.run([*program, str(WRITERS), str(ENTRIES)], capture_output=True, text=True, check=False)
    assert "is locked" not in done.stderr
    assert done.returncode == 0, done.stderr
    with open_journal(f"sqlite:///{path}") as journal, journal.reading() as reading:
        leases = reading.where(Lease, {})
    written = Counter(lease.resource.partition("/")[0] for lease in leases if lease.sequence <= ENTRIES)
    assert len(written) == WRITERS
    return sorted(written.values())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as opened:
        yield opened


def test_a_stopped_writer_gives_others_an_error_and_no_hang(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lock, "WAIT_S", QUICK)
    with _locking_process(path) as other:
        other.send_signal(signal.SIGSTOP)
        words = f"process with pid {other.pid} let no other .* nothing was applied; .* belong on PostgreSQL"
        with pytest.raises(JournalUnavailableError, match=words):
            journal.apply(take("a"))
    assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_a_writer_waits_as_long_as_the_lock_is_handed_on(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty processes on a busy machine may need more than the limit, each its share of it."""
    others, limits = ExitStack(), list[float | None]()
    lock = path.with_name("journal.db-lock")

    class Limit(Event):
        def wait(self, timeout: float | None = None) -> bool:
            limits.append(timeout)
            if len(limits) < 5:
                os.utime(lock, ns=(0, len(limits)))  # another process has it now
                return False
            others.close()
            return super().wait()

    journal.apply(take("a"))
    others.enter_context(writer_lock.WriterLock(path, "other").locked())
    monkeypatch.setattr(writer_lock, "Event", Limit)
    assert journal.apply(take("b")).stamp == Stamp(1, 2)
    assert limits == [writer_lock.WAIT_S] * 5


@contextmanager
def _locking_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that has the lock, and kill it at the end of the block."""
    program = (
        "import sys, pathlib; from lockgate.storage_core.journal.database.writer_lock import WriterLock\n"
    )
    program += "with WriterLock(pathlib.Path(sys.argv[1]), 'other').locked(): print(flush=True); input()"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"\n"
            yield other
        finally:
            other.kill()


@pytest.mark.parametrize("moment", ["open", "release"])
def test_a_fork_keeps_no_copy_of_the_lock_whenever_it_begins(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A copy that nobody closes would keep the lock from all others if the parent then died."""
    reached = Event()
    path.touch()
    open_beside, flock = writer_lock.open_beside, fcntl.flock

    def stay() -> None:
        reached.set()
        sleep(QUICK)  # the fork below would begin here

    def opened(*given: Any) -> int:
        descriptor = open_beside(*given)
        stay()
        return descriptor

    def released(file: FileIO, mode: int) -> None:
        if mode == fcntl.LOCK_UN:
            stay()
        flock(file, mode)

    if moment == "open":
        monkeypatch.setattr(writer_lock, "open_beside", opened)
    else:
        monkeypatch.setattr(writer_lock.fcntl, "flock", released)

    def write() -> None:
        with writer_lock.WriterLock(path, "journal").locked():
            pass

    with ThreadPoolExecutor(1) as executor:
        written = executor.submit(write)
        assert reached.wait(10)
        child = os.fork()
        if child == 0:
            os._exit(
                any(name_of_copy(copy) == f"{path.name}-lock" for copy in Path("/proc/self/fd").iterdir())
            )
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        written.result()


def name_of_copy(descriptor: Path) -> str:
    with suppress(OSError):
        return descriptor.readlink().name
    return ""
