"""Which files a tailer takes for an observer's, which for a primary's, and which it leaves as they are."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalVersionError,
    MalformedJournalError,
    ObjectNotFoundError,
)
from lockgate.storage_core.journal import Stamp, open_journal
from lockgate.storage_core.journal.observers import open_tailer
from tests.observer_world import (
    ObserverWorld,
    copied_until,
    copy_of,
    dump,
    primary_of,
    take,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ObserverWorld]:
    opened = ObserverWorld(tmp_path)
    yield opened
    opened.close()


def test_a_copy_of_another_journal_is_left_as_it_is(world: ObserverWorld, tmp_path: Path) -> None:
    world.tailer().poll()
    before = copy_of(world)
    with open_journal(f"sqlite:///{tmp_path / 'other.db'}") as other:
        take(other)
    with (
        open_tailer(f"sqlite:///{tmp_path / 'other.db'}", world.file(0)) as wrong,
        pytest.raises(MalformedJournalError, match="another journal"),
    ):
        wrong.poll()
    assert copy_of(world) == before


def test_a_file_that_is_no_observers_is_left_as_it_is(world: ObserverWorld) -> None:
    before = dump(world.root / "journal.db")
    with pytest.raises(InvalidInputError, match="no observer's file"):
        open_tailer(world.url, world.root / "journal.db")
    assert dump(world.root / "journal.db") == before


def test_an_observers_file_is_no_journal_to_write_to(world: ObserverWorld) -> None:
    world.tailer().poll()
    with pytest.raises(InvalidInputError, match="observer's copy"):
        open_journal(f"sqlite:///{world.file(0)}")


def test_a_copy_of_another_version_is_made_anew(world: ObserverWorld) -> None:
    take(world.journal)
    world.tailer().poll()
    with sqlite3.connect(world.file(0)) as copy:
        copy.execute("UPDATE alembic_version SET version_num = '9999' WHERE version_num = 'jobs_1'")
        copy.execute("ALTER TABLE lease DROP COLUMN detail")
    copy.close()
    assert world.tailer().poll() == 1
    assert copy_of(world, 1) == primary_of(world)


def test_a_primary_that_is_not_there_or_of_another_version_is_refused_and_not_made(
    world: ObserverWorld, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.db"
    with pytest.raises(ObjectNotFoundError, match="no journal at"):
        open_tailer(f"sqlite:///{missing}", world.file(0))
    assert not missing.exists()
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(JournalVersionError, match="version"):
        open_tailer(f"sqlite:///{empty}", world.file(0))
    assert not world.file(0).exists()


def test_a_copied_file_may_begin_another_observer(world: ObserverWorld) -> None:
    take(world.journal)
    world.tailer(0).poll()
    world.tailers.pop().close()
    shutil.copy(world.file(0), world.file(1))
    take(world.journal)
    tailer = world.tailer(1)
    assert tailer.poll() == 1
    assert copied_until(world) == 1
    assert tailer._mirror.status() is not None
    assert copy_of(world)["stamp"] == Stamp(1, 2)
