"""Writers that a signal handler interrupts at any step: Ctrl-C, the time limits of Airflow and Celery."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lockgate.storage_core.errors import LeaseHeldError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.journal.uninterrupted import UNINTERRUPTED
from lockgate.storage_core.settings import Settings
from tests.support.soak import rounds

pytestmark = [
    pytest.mark.fault,
    # An interrupt that meets a destructor is lost, as everywhere in Python.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROUNDS = rounds(40, 400)
LATEST_S = 0.03
"""A round without an interrupt takes less."""


class Interrupted(BaseException):
    """Raised by the handler, as `KeyboardInterrupt` is by Python's."""


def _raise(number: int, frame: object) -> None:
    raise Interrupted


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Interrupt the block once, at a time of its run."""
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        with suppress(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    settings = Settings(home=tmp_path, lease_renew_s=0.2, lease_soft_s=1, lease_hard_s=1, commit_window_s=0.5)
    with open_files(settings, writes=True) as opened:
        yield opened


def append(files: Files) -> Writer:
    """Open the file; a writer that was lost on its way to an interrupted caller has a lease that lapses."""
    for _ in range(3):
        with suppress(LeaseHeldError):
            return files.append("/a.log")
        time.sleep(0.5)  # it is not overdue yet, so that the call does not wait for it
    return files.append("/a.log")


@pytest.mark.parametrize("seed", range(4))
def test_an_interrupt_leaves_each_flushed_byte_and_a_file_that_goes_on(files: Files, seed: int) -> None:
    chance = random.Random(seed)
    flushed = written = b""
    interrupted = 0
    files.create("/a.log").close()
    for number in range(ROUNDS):
        is_whole = False
        with interrupted_after(chance.uniform(0.0005, LATEST_S)), append(files) as log:
            assert log.tell() == len(written)
            for line in range(20):
                data = b"%d %d " % (number, line) + b"x" * chance.choice([1, 500, 100_000]) + b"\n"
                written += data
                log.write(data)
                if line % 3 == 0:
                    log.flush()
                    flushed = written
            is_whole = True
        interrupted += not is_whole
        with append(files) as log:  # the calls that went on behind the interrupt are over
            length = log.tell()
        with files.open("/a.log") as reader:
            found = reader.read()
        assert len(found) == length
        assert found.startswith(flushed)
        assert written.startswith(found)
        flushed = written = found
    assert interrupted > ROUNDS // 4


def test_an_interrupt_of_an_empty_file_leaves_it_closed(files: Files) -> None:
    chance = random.Random(15)
    for number in range(ROUNDS):
        path = f"/{number}.log"
        with (
            interrupted_after(chance.uniform(0.0005, LATEST_S / 3)),
            files.create(path) as log,
        ):
            log.write(b"first")
            log.flush()
            log.write(b"second")
        UNINTERRUPTED.run(lambda: None)
        assert not any(found.is_open for found in files.list("/"))
