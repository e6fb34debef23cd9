"""What a commit costs does not grow with the turns that a destination has had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import World

RECORDS = 2_500


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys that listings have returned so far."""
    keys: list[str] = []
    pages = LocalStore.pages

    def counted(store: LocalStore, *arguments: Any, **options: Any) -> Iterator[Any]:
        for page in pages(store, *arguments, **options):
            keys.extend(info.key for info in page)
            yield page

    monkeypatch.setattr(LocalStore, "pages", counted)
    return keys


def make(world: World, folder: str, number: int) -> None:
    path = Path(world.url) / folder
    path.mkdir(parents=True, exist_ok=True)
    for each in range(number):
        (path / f"{each:08d}.json").touch()


def test_a_listing_of_the_data_skips_all_but_a_page_of_the_records(world: World, listed: list[str]) -> None:
    data = ["2026/00000000.json", "_x=1/00000000.json", "day=1/00000000.json", "zone=1/00000000.json"]
    for key in data:
        make(world, key.rpartition("/")[0], 1)
    make(world, "_lockgate/shards", RECORDS)
    make(world, "day=1/_lockgate/shards", RECORDS)  # a destination inside, whose data are not this one's
    make(world, "zone=1/_lockgated", 1)
    found = [info.key for info in visible_files(world.store)]
    assert found == [key for key in data if not key.startswith("day=1/")]
    assert len(listed) < 2 * 1_000 + len(data) + 2


def test_replace_lists_a_page_of_the_records_of_earlier_turns(world: World, listed: list[str]) -> None:
    world.run("old", {"old.csv": b"1"})
    make(world, "_lockgate/shards", RECORDS)
    listed.clear()
    world.run("new", {"new.csv": b"2"}, mode="replace")
    assert world.visible() == {"new.csv": b"2"}
    assert sum("_lockgate/shards/" in key for key in listed) <= 2 * 1_000


def test_a_destination_shows_that_it_has_published_in_the_first_entries_of_its_log(
    world: World, listed: list[str]
) -> None:
    world.run("first", {"a.csv": b"1"})
    for turn in range(2, 300):
        (Path(world.url) / f"_lockgate/log/{turn:08d}.turn").touch()
    listed.clear()
    assert DestinationLog(world.store).has_published()
    assert len(listed) <= 50
