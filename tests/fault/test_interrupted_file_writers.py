"""Writers that a signal handler interrupts at any step: Ctrl-C, the time limits of Airflow and Celery."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.journal.journal import open_journal
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.soak import rounds

pytestmark = [
    pytest.mark.fault,
    # An interrupt that meets a destructor is lost, as everywhere in Python.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROUNDS = rounds(15, 400)
LATEST_S = 0.03
"""A round without an interrupt takes less."""


class Interrupted(BaseException):
    """Raised by the handler, as `KeyboardInterrupt` is by Python's."""


class TimeLimitError(Exception):
    """Raised by the handler, as `SoftTimeLimitExceeded` is by Celery's."""


@contextmanager
def interrupted_after(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Interrupt the block once, at a time of its run."""

    def interrupt(number: int, frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with suppress(error):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["one volume", "two volumes and a bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path, journal_url: str) -> Iterator[Files]:
    settings = Settings(
        home=tmp_path,
        lease_renew_s=0.2,
        lease_soft_s=1,
        lease_hard_s=1,
        commit_window_s=0.5,
        files_replicas=3,
    )
    with ExitStack() as stack:
        volumes: list[LocalVolume | S3Volume] = [stack.enter_context(LocalVolume(tmp_path / "a"))]
        if request.param != "one volume":
            volumes.append(stack.enter_context(LocalVolume(tmp_path / "b")))
            volumes.append(S3Volume(LocalStore(tmp_path / "c")))
        journal = open_journal(journal_url)
        stack.callback(journal.close)
        opened = Files(journal, {volume.id: volume for volume in volumes}, settings, block_bytes=250_000)
        stack.callback(opened.close)
        yield opened


def wait_for_lease(files: Files, path: str) -> None:
    """Wait until the lease of a call or a writer that was interrupted has lapsed: it is not renewed."""
    inode = files.status(path).inode
    while left_s := files.recovery.lapses_in_s(inode):
        time.sleep(left_s)


def append(files: Files) -> Writer:
    """Open the file, whose last writer may have been interrupted."""
    wait_for_lease(files, "/a.log")
    return files.append("/a.log")


@pytest.mark.parametrize("error", [Interrupted, TimeLimitError, TimeoutError])
def test_an_interrupt_leaves_each_flushed_byte_and_a_file_that_goes_on(
    files: Files, error: type[BaseException]
) -> None:
    chance = random.Random(error.__name__)
    flushed = written = b""
    interrupted = 0
    files.create("/a.log").close()
    for number in range(ROUNDS):
        is_whole = False
        with interrupted_after(chance.uniform(0.0005, LATEST_S), error), append(files) as log:
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
        with append(files) as log:
            length = log.tell()
        with files.open("/a.log") as reader:
            found = reader.read()
        assert len(found) == length
        assert found.startswith(flushed)
        assert written.startswith(found)
        flushed = written = found
    assert interrupted > ROUNDS // 4


def test_an_interrupted_creation_leaves_a_file_that_a_recovery_closes(files: Files) -> None:
    chance = random.Random(15)
    for number in range(ROUNDS):
        with (
            interrupted_after(chance.uniform(0.0005, LATEST_S / 3), Interrupted),
            files.create(f"/{number}.log") as log,
        ):
            log.write(b"first")
            log.flush()
            log.write(b"second")
    paths = [f"/{found.name}" for found in files.list("/")]
    for path in paths:
        wait_for_lease(files, path)
        files.recover(path)
    assert not any(found.is_open for found in files.list("/"))
    for path in paths:
        with files.open(path) as reader:
            assert reader.read() in (b"", b"first", b"firstsecond")
