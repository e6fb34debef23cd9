"""Two processes have one file, a writer and one that takes it over, and stop each other at every step.

The first goes to a step; the second takes the file and goes to a step; the first, whose lease is lost, goes
to its end; then the second does. So each pauses at each step of the other. For the second one, a pause of
the first from which it wakes too late is a death.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.errors import FencedError, NotAppliedError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.file_recovery import settle
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.writing import writer as writer_module
from lockgate.storage_core.files.writing.writer import FileWriter
from tests.conftest import Summarise
from tests.support.files.faulty_volumes import Inline
from tests.support.files.file_world import FileWorld
from tests.support.journal.checkpoints import JournalWorld
from tests.support.soak import sample

BEFORE, WRITTEN, APPENDED = b"0123", b"abcdef", b"WXYZ"
BLOCK_BYTES = 7
END = 10**6
NUMBERS = count()


class Process(threading.Thread):
    """A process that stops after a number of steps.

    Attributes:
        steps: How many it has made.
        taken: How many it had made when it had the file.
        found: The file as it had it then.
        flushed: What a flush has acknowledged to it since.
        is_cut: Whether it has cut the file.
    """

    def __init__(self, world: FileWorld, path: str, call: Callable[[Process], None]) -> None:
        super().__init__(daemon=True)
        self.world, self.path = world, path
        self.found = self.flushed = b""
        self.is_cut = self.has_ended = False
        self.error: BaseException | None = None
        self.steps = self.taken = self._until = 0
        self._call = call
        self._goes, self._stops = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        self._goes.acquire()
        try:
            self._call(self)
        except FencedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `go`
            self.error = error
        self.has_ended = True
        self._stops.release()

    def go(self, until: int) -> None:
        """Go on until it has made so many steps, or has ended."""
        if not self.has_ended:
            self._until = until
            self._goes.release()
            self._stops.acquire()
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        if self.steps == self._until:
            self._stops.release()
            self._goes.acquire()
        self.steps += 1

    def write(self, text: bytes) -> None:
        blocks = self.world.take(self.path, self.name)
        self.taken = self.steps
        writer = FileWriter(blocks, self.world.volumes, block_bytes=BLOCK_BYTES)
        self.found = (BEFORE + WRITTEN)[: writer.tell()]
        for end in range(2, len(text) + 1, 2):
            writer.write(text[end - 2 : end])
            writer.flush()
            self.flushed = text[:end]
        writer.close()

    def append(self) -> None:
        self.write(APPENDED)

    def recover(self) -> None:
        blocks = self.world.take(self.path, self.name)
        settle(blocks, self.world.volumes)
        blocks.close()

    def truncate(self) -> None:
        blocks = self.world.take(self.path, self.name)
        first, *_ = settle(blocks, self.world.volumes)
        self.is_cut = True
        reseal(blocks, self.world.volumes, first.block, ends=ReplicaState.SEALED, target_bytes=2)
        blocks.close()


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FileWorld, FileWorld]]:
    """Yield two processes' views of one journal and its volumes."""
    monkeypatch.setattr(writer_module, "ThreadPoolExecutor", Inline)

    def observe(_: str) -> None:
        process = threading.current_thread()
        if isinstance(process, Process):
            process.step()

    journals = JournalWorld(tmp_path, f"sqlite:///{tmp_path}/journal.db", "")
    with FileWorld(journals, tmp_path) as one, FileWorld(journals, tmp_path) as other:
        FAILPOINTS.observer = observe
        yield one, other


def processes(
    worlds: tuple[FileWorld, FileWorld], call: Callable[[Process], None]
) -> tuple[Process, Process]:
    """Return a writer of a closed file, and a process that takes it over."""
    path = f"/{next(NUMBERS)}.log"
    with worlds[0].process(block_bytes=BLOCK_BYTES).create(path) as writer:
        writer.write(BEFORE)
    return Process(worlds[0], path, lambda one: one.write(WRITTEN)), Process(worlds[1], path, call)


def check_read(one: Process, other: Process) -> None:
    """Read in the middle: what was acknowledged is there, or an error."""
    try:
        found = one.world.process().open(one.path).read()
    except NotAppliedError:
        return
    assert other.is_cut or found.startswith(BEFORE + one.flushed)
    assert found.startswith(other.found + other.flushed)
    assert (BEFORE + WRITTEN).startswith(found) or (other.found + APPENDED).startswith(found)


@pytest.mark.parametrize("call", [Process.recover, Process.append, Process.truncate])
def test_a_file_has_what_was_acknowledged_wherever_two_processes_stop_each_other(
    worlds: tuple[FileWorld, FileWorld], call: Callable[[Process], None], summarise: Summarise
) -> None:
    whole, _ = processes(worlds, call)
    whole.go(END)
    one, other = processes(worlds, call)
    one.go((whole.taken + whole.steps) // 2)
    other.go(END)
    one.go(END)
    pairs = [(at, to) for at in range(whole.taken, whole.steps + 1) for to in range(other.steps + 1)]
    assert len(pairs) > 500
    chosen = sample(pairs, 31)
    for at, to in chosen:
        one, other = processes(worlds, call)
        try:
            one.go(at)
            other.go(to)
            check_read(one, other)
            one.go(END)
            check_read(one, other)
            other.go(END)
            found = one.world.process().open(one.path).read()
            one.world.check_sealed(one.path, found)
            if call is Process.append:
                assert other.flushed == APPENDED
                assert found == other.found + APPENDED
                assert other.found.startswith(BEFORE + one.flushed)
            elif call is Process.recover:
                assert found.startswith(BEFORE + one.flushed)
                assert (BEFORE + WRITTEN).startswith(found)
            else:
                assert found == BEFORE[:2]
        except BaseException as error:
            error.add_note(f"the writer stops at its step {at}, the other one at {to}")
            raise
    summarise(f"{len(chosen)} of {len(pairs)} orders of the steps of a writer and of `{call.__name__}`")
