"""Listings, readers and reports of files read at observers, and change nothing because one is behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from lockgate.storage_core.errors import JournalUnavailableError, PathNotFoundError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.settings import load_settings
from tests.support.files.faulty_volumes import FaultyDirectory
from tests.support.journal.observers import ObserverWorld

VOLUME = VolumeId("volume-0")


class FilesAtObserver(ObserverWorld):
    """A writer at the primary, and another process whose reads go to an observer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.volume = FaultyDirectory(self.root / VOLUME, VOLUME)
        self.writer = self.files(self.journal)
        with self.writer.create("/a.log") as log:
            log.write(b"abc")
        self.tailer().poll()
        self.other = self.another_process()
        self.reads = self.client(journal=self.other)
        self.reader = self.files(self.other, self.reads)

    def files(self, journal: Journal, reads: Client | None = None) -> Files:
        return Files(journal, {VOLUME: self.volume}, load_settings(), reads=reads)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FilesAtObserver]:
    opened = FilesAtObserver(tmp_path)
    yield opened
    opened.writer.close()
    opened.reader.close()
    opened.close()


def test_listings_and_readers_need_no_primary_if_the_observer_has_what_was_seen(
    world: FilesAtObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reads.see(world.client().token)

    def refuse(*_: object) -> NoReturn:
        raise JournalUnavailableError("the primary is down")

    monkeypatch.setattr(world.other.database, "snapshot", refuse)
    assert [one.name for one in world.reader.list("/")] == ["a.log"]
    assert world.reader.status("/a.log").length_bytes == 3
    assert world.reader.open("/a.log").read() == b"abc"


def test_a_reader_whose_blocks_have_gone_since_the_observers_state_asks_the_primary(
    world: FilesAtObserver,
) -> None:
    world.reads.sync()
    reader = world.reader.open("/a.log")
    world.writer.delete("/a.log")
    world.writer.remove_deleted()
    assert world.reader.status("/a.log").length_bytes == 3  # this process has no newer token
    with pytest.raises(PathNotFoundError):
        reader.read()
    with pytest.raises(PathNotFoundError):
        world.reader.status("/a.log")  # it has seen the deletion, and sees no older state


def test_a_report_at_an_observer_that_is_behind_judges_what_differs_at_the_primary(
    world: FilesAtObserver,
) -> None:
    world.reads.sync()
    with world.writer.create("/b.log") as log:
        log.write(b"new")
    with world.writer.append("/a.log") as log:
        log.write(b"def")
    assert list(world.reader.upkeep.check().findings()) == []
    block = min(world.volume.blocks())
    world.volume.lose(block)
    found = [(one.block, one.problem) for one in world.reader.upkeep.check().findings()]
    assert found == [(block, Problem.LOST)]
