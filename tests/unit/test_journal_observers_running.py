"""How often a running tailer looks at its primary, and what it does in trouble."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.observers import open_tailer
from tests.commit_world import ManualClock
from tests.observer_world import ObserverWorld, asked, take
from tests.postgres_world import Server


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


class LoopClock(ManualClock):
    """Notes each wait of a loop, and ends the loop after some."""

    def __init__(self, stop: threading.Event, meanwhile: list[Callable[[], object]]) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.stop = stop
        self.meanwhile = meanwhile

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        else:
            self.stop.set()
        return event.is_set()


@contextmanager
def heard(observe: Callable[[str], None]) -> Iterator[None]:
    """Hear of each point that is passed meanwhile."""
    FAILPOINTS.observer = observe
    try:
        yield
    finally:
        FAILPOINTS.observer = None


def test_a_running_tailer_reads_its_primary_seldom_while_nothing_happens_and_at_once_after_a_change(
    world: ObserverWorld,
) -> None:
    stop = threading.Event()
    read_at: list[float] = []
    nothing = [lambda: None] * 150
    clock = LoopClock(stop, [*nothing, lambda: take(world.journal), *nothing[:2]])

    def note(point: str) -> None:
        if point == "tail.journal-read.before":
            read_at.append(sum(clock.waits))

    with open_tailer(world.url, world.file(0), clock=clock) as tailer, heard(note):
        tailer.run(stop)
    assert set(clock.waits) == {0.0005}
    pauses = [after - before for before, after in pairwise(read_at)]
    # The first look is the first to see the file; the last but one saw it change amid a rest.
    assert pauses == pytest.approx([0.0005, 0.004, 0.008, 0.016, 0.02, 0.02, 0.007, 0.001])
    assert world.client().read(asked) == ("observer-0", 1)


@pytest.mark.requires("postgres")
def test_a_running_tailer_reads_a_primary_without_a_file_more_seldom_while_nothing_happens(
    postgres: Server, tmp_path: Path
) -> None:
    stop = threading.Event()
    with open_journal(postgres.new_database("test_running_tailer")) as journal:
        url = journal.database.url.render_as_string(hide_password=False)
        clock = LoopClock(stop, [lambda: None] * 5 + [lambda: take(journal)])
        with open_tailer(url, tmp_path / "observer.db", clock=clock) as tailer:
            tailer.run(stop)
    assert clock.waits == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.001]


def test_a_running_tailer_waits_out_a_primary_that_cannot_be_reached(
    world: ObserverWorld, tmp_path: Path
) -> None:
    stop = threading.Event()
    tries: list[str] = []

    def fail(point: str) -> None:
        if point == "tail.journal-read.before":
            tries.append(point)
            if len(tries) == 1:
                raise JournalUnavailableError("the connection is refused")

    clock = LoopClock(stop, [lambda: None])
    take(world.journal)
    with open_tailer(world.url, world.file(0), clock=clock) as tailer, heard(fail):
        tailer.run(stop)
    assert clock.waits[0] == 1.0
    assert world.client().read(asked) == ("observer-0", 1)
