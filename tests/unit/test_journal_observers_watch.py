"""The watch on a journal's file: it tells whether somebody has written there, and is never in the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.observers.file_watch import Watch
from tests.observer_world import ObserverWorld, take


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def watch(world: ObserverWorld) -> Iterator[Watch]:
    opened = Watch(world.root / "journal.db")
    yield opened
    opened.close()


def test_a_watch_sees_each_write_once(world: ObserverWorld, watch: Watch) -> None:
    assert (watch.has_changed(), watch.has_changed()) == (True, False)
    take(world.journal)
    assert (watch.has_changed(), watch.has_changed()) == (True, False)
    with world.journal.reading() as reading:
        reading.status()
    assert not watch.has_changed()


def test_a_watch_on_a_file_that_is_not_there_sees_nothing_and_makes_none(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "journal.db")
    assert not watch.has_changed()
    assert list(tmp_path.iterdir()) == []


def test_a_watch_sees_a_write_while_another_one_holds_the_lock(world: ObserverWorld, watch: Watch) -> None:
    watch.has_changed()
    take(world.journal)
    with world.another_process().database.write():
        assert (watch.has_changed(), watch.has_changed()) == (True, False)


def test_a_watch_sees_that_another_file_has_taken_the_place_of_the_one_it_looked_at(tmp_path: Path) -> None:
    journal, restored = tmp_path / "journal.db", tmp_path / "restored.db"
    for path in (journal, restored):
        with open_journal(f"sqlite:///{path}") as written:
            take(written)
    watch = Watch(journal)
    watch.has_changed()
    restored.rename(journal)
    assert (watch.has_changed(), watch.has_changed()) == (True, False)
    with open_journal(f"sqlite:///{journal}") as written:
        take(written)
        assert watch.has_changed()
    watch.close()


def test_a_child_and_its_parent_both_watch_on(world: ObserverWorld, watch: Watch) -> None:
    watch.has_changed()
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # one that hangs is not left behind
        try:
            os._exit(0 if (watch.has_changed(), watch.has_changed()) == (True, False) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    watch.has_changed()
    take(world.journal)
    assert watch.has_changed()
