"""An interrupt at each line of a write and a flush leaves the piece in the file once, or out of it."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from linecache import getline
from pathlib import Path
from types import FrameType

import pytest

from lockgate.storage_core.errors import FencedError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.stores.gathered_bytes import SMALL_BYTES
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume

# An interrupt that meets a destructor is lost, as everywhere in Python.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MOST_LINES = 20_000
BUCKET_STRIDE = 37
"""Lines between two interrupts where a bucket is written, which has many more of them."""
ENDED = 3
"""Writes in a row that ended before their line."""
NOWHERE_BETWEEN = {"_in_turn", "step"}
"""Functions that Python leaves through `finally` without running signal handlers before."""


class Interrupted(BaseException):
    """Raised by the handler, as `KeyboardInterrupt` is by Python's."""


class InterruptAt:
    """Sends this process a signal at one line of Lockgate that the main thread runs."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> InterruptAt | None:
        code = frame.f_code
        if "storage_core" not in code.co_filename or code.co_name in NOWHERE_BETWEEN:
            return None
        # Python passes the line of a `with` once more before the exit, where it runs no handlers.
        if event == "line" and not getline(code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self


@pytest.fixture(autouse=True, params=[Interrupted, TimeoutError])
def interrupted(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    def interrupt(number: int, frame: object) -> None:
        raise request.param

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture(params=["disk", "elsewhere", "bucket", "disk and bucket"])
def volumes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[VolumeId, Volume]]:
    with ExitStack() as stack:
        opened: dict[VolumeId, Volume] = {}
        if request.param == "elsewhere":
            opened[VolumeId("a")] = MemoryVolume(VolumeId("a"))
        if "disk" in request.param:
            opened[VolumeId("b")] = stack.enter_context(LocalVolume(tmp_path / "disk"))
        if "bucket" in request.param:
            opened[VolumeId("c")] = S3Volume(LocalStore(tmp_path / "bucket"))
        yield opened


def is_bucket(volumes: dict[VolumeId, Volume]) -> bool:
    return any(isinstance(volume, S3Volume) for volume in volumes.values())


@pytest.mark.parametrize("size", [10, SMALL_BYTES])
@pytest.mark.parametrize("pieces", [1, MOST_LINES])
def test_an_interrupt_at_each_line_leaves_a_piece_once_or_out(
    volumes: dict[VolumeId, Volume], interrupted: type[BaseException], size: int, pieces: int
) -> None:
    journal = MemoryJournal(tuple(volumes))
    writer = Writer(MemoryBlocks(journal, "writer"), volumes, block_bytes=pieces * size)
    written, count, ended = b"", 0, 0
    for line in range(1, MOST_LINES, BUCKET_STRIDE if is_bucket(volumes) else 1):
        piece = (b"%d " % line).ljust(size, b"x")
        at, is_done = InterruptAt(line), False
        former = sys.gettrace()
        with suppress(interrupted):
            try:
                sys.settrace(at)
                writer.write(piece)
                writer.flush()
                is_done = True
            finally:
                sys.settrace(former)
        if interrupted is Interrupted or not is_bucket(volumes):  # a store takes the other for the system's
            assert is_done == (at.left > 0), f"line {line}: the interrupt was lost"
        count += not is_done
        writer.flush()
        with Reader(lambda: tuple(journal.rows.values()), volumes) as reader:
            reader.seek(len(written))
            found = reader.read()
        assert found in (b"", piece), f"line {line}"
        written += found
        ended = ended + 1 if at.left > 0 else 0  # a piece that was left out makes the next call shorter
        if ended == ENDED:
            break
    writer.close()
    assert ended == ENDED
    assert count > 5
    with Reader(lambda: tuple(journal.rows.values()), volumes) as reader:
        assert reader.read() == written


class FailingDisk(Disk):
    """Fails some syncs.

    Attributes:
        fails: How many from here on fail.
        has_failed: Whether one has.
    """

    fails = 0
    has_failed = False

    def sync(self, file: int) -> None:
        if self.fails:
            self.fails -= 1
            self.has_failed = True
            raise OSError(errno.EIO, "on purpose")
        super().sync(file)


@contextmanager
def interrupted_at_call(is_due: Callable[[str], bool]) -> Iterator[None]:
    """Interrupt the block at the first call of a function of Python for which `is_due` returns True."""

    def look(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and is_due(frame.f_code.co_name):
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(look)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("at", ["the sync that fails", "the write before it"])
def test_no_byte_is_acknowledged_whose_sync_failed_beside_an_interrupt(tmp_path: Path, at: str) -> None:
    disk, name = FailingDisk(), VolumeId("a")
    journal = MemoryJournal((name,))
    with LocalVolume(tmp_path, disk=disk) as volume:
        writer = Writer(MemoryBlocks(journal, "writer"), {name: volume})
        writer.write(b"flushed")
        writer.flush()
        writer.write(b"lost")
        if at == "the write before it":
            with interrupted_at_call(lambda function: function == "extend"):
                writer.flush()
            disk.fails = 1
        else:
            disk.fails = 1
            with interrupted_at_call(lambda function: disk.has_failed):
                writer.flush()
        for _ in range(3):
            with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                writer.flush()
        assert disk.has_failed
        (block,) = journal.rows
        found = volume.stat(block)
        assert found is not None
        assert found.durable_bytes == len(b"flushed")


def test_an_interrupted_creation_after_a_takeover_acknowledges_nothing() -> None:
    name = VolumeId("a")
    journal, volumes = MemoryJournal((name,)), {name: MemoryVolume(name)}
    writer = Writer(MemoryBlocks(journal, "writer"), volumes)

    def act(point: str) -> None:
        if point == "pipeline.create.before":
            FAILPOINTS.observer = None
            with Writer(MemoryBlocks(journal, "other"), volumes) as other:
                other.write(b"new")
            FAILPOINTS.observer = act
        elif point == "pipeline.create.after":
            FAILPOINTS.observer = None
            raise Interrupted

    FAILPOINTS.observer = act
    try:
        with pytest.raises(Interrupted):
            writer.write(b"old")
    finally:
        FAILPOINTS.observer = None
    writer.write(b"old")
    for _ in range(2):
        with pytest.raises(FencedError):
            writer.flush()
    with Reader(lambda: tuple(journal.rows.values()), volumes) as reader:
        assert reader.read() == b"new"
