"""An interrupt at each line of a write and a flush leaves the piece in the file once, or out of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.stores.gathered_bytes import SMALL_BYTES
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume

# An interrupt that meets a destructor is lost, as everywhere in Python.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

A = VolumeId("a")
MOST_LINES = 2000


class Interrupted(BaseException):
    """Raised by the handler, as `KeyboardInterrupt` is by Python's."""


class InterruptAt:
    """Sends this process a signal at one line of Lockgate that the main thread runs."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> InterruptAt | None:
        code = frame.f_code
        if "storage_core" not in code.co_filename or code.co_name == "_alone":
            return None  # in `_alone` Python looks for signals in the calls only, not around its `with`
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture(params=["disk of this machine", "elsewhere"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Volume]:
    if request.param == "elsewhere":
        yield MemoryVolume(A)
        return
    with LocalVolume(tmp_path) as volume:
        yield volume


@pytest.mark.parametrize("size", [10, SMALL_BYTES])
def test_an_interrupt_at_each_line_leaves_a_piece_once_or_out(volume: Volume, size: int) -> None:
    journal = MemoryJournal((A,))
    volumes = {A: volume}
    writer = Writer(MemoryBlocks(journal, "writer"), volumes, block_bytes=3 * size)
    written, interrupted = b"", 0
    for line in range(1, MOST_LINES):
        piece = (b"%d " % line).ljust(size, b"x")
        at, is_done = InterruptAt(line), False
        former = sys.gettrace()
        with suppress(Interrupted):
            try:
                sys.settrace(at)
                writer.write(piece)
                writer.flush()
                is_done = True
            finally:
                sys.settrace(former)
        interrupted += not is_done
        writer.flush()
        with Reader(lambda: tuple(journal.rows.values()), volumes) as reader:
            reader.seek(len(written))
            found = reader.read()
        assert found in (b"", piece), f"line {line}"
        written += found
        if at.left > 0:
            break
    writer.close()
    assert at.left > 0
    assert interrupted > 20
    with Reader(lambda: tuple(journal.rows.values()), volumes) as reader:
        assert reader.read() == written
