"""Destinations that earlier versions nested: operations on the outer one touch no files of the nested one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.visible_files import NestedDestinations, visible_files
from tests.support.commit.destination import World, overlapping
from tests.support.fake_s3 import Options
from tests.support.s3.destination import S3World, s3_world

THEIRS = {"b.csv": b"below", "B.csv": b"Below", "2026/b.csv": b"deep below"}
"""Names that sort before and after `_lockgate/` in a listing."""
OURS = {"ours.csv": b"above"}


@pytest.fixture(autouse=True)
def nested() -> Iterator[None]:
    """Allow nested destinations."""
    with overlapping():
        yield


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def above(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Return an empty destination in a directory or in the strict fake S3."""
    if request.param == "s3":
        found: S3World = request.getfixturevalue("s3")
        return found.driver
    return World(tmp_path, str(tmp_path / "dest"))


def below(above: World, folder: str = "below") -> World:
    """Return a nested destination with data."""
    found = World(above.root, f"{above.url}/{folder}", above.clock, above.options)
    found.run("theirs", THEIRS, unique_filenames=False)
    return found


def is_untouched(world: World) -> bool:
    return world.visible() == THEIRS and world.live() == world.keys()


@pytest.mark.parametrize("folder", ["below", "Below", "x/2026/below"])
def test_replace_removes_all_data_except_that_of_a_nested_destination(above: World, folder: str) -> None:
    theirs = below(above, folder)
    above.store.put(f"{folder}-not/foreign.csv", b"foreign")
    above.store.put("Foreign.csv", b"foreign")
    above.run("old", {"old.csv": b"old"})
    receipt = above.run("ours", OURS, mode="replace").receipt
    assert receipt is not None
    assert receipt.removed_files == 3
    assert above.visible() == OURS
    assert is_untouched(theirs)


def test_replacing_a_partition_does_not_touch_a_nested_destination_that_contains_it(above: World) -> None:
    theirs = World(above.root, f"{above.url}/below", above.clock, above.options)
    theirs.run("theirs", {"day=1/b.csv": b"below"})
    above.run("ours", {"below/day=1/ours.csv": b"above"}, mode="replace", scope="partitions")
    assert {"day=1/b.csv", "day=1/ours.csv"} == set(theirs.visible())
    assert len(theirs.live()) == 1


def test_data_of_a_nested_destination_do_not_make_the_outer_one_occupied(above: World) -> None:
    theirs = below(above)
    above.run("ours", OURS, mode="fail")
    assert above.visible() == OURS
    assert is_untouched(theirs)


def test_a_file_that_was_written_before_its_folder_became_a_destination_is_replaced(above: World) -> None:
    above.run("old", {"below/old.csv": b"old"})
    theirs = below(above)
    above.run("ours", OURS, mode="replace")
    assert above.live() == above.keys()
    assert above.visible() == OURS
    assert is_untouched(theirs)


def test_a_file_that_a_nested_destination_overwrote_is_dropped_from_the_log_and_kept(above: World) -> None:
    above.run("old", {"below/b.csv": b"old"}, unique_filenames=False)
    theirs = World(above.root, f"{above.url}/below", above.clock, above.options)
    theirs.run("theirs", THEIRS, unique_filenames=False, allow_irreversible=True)
    above.run("ours", OURS, mode="replace")
    assert above.live() == above.keys()
    assert is_untouched(theirs)


@pytest.mark.parametrize("page_size", [2, 3, 1000])
def test_a_listing_of_many_folders_is_not_followed_by_a_request_for_each(s3: S3World, page_size: int) -> None:
    found: list[str] = []
    depth = 2
    days = [f"2026/day={day:02}/part.csv" for day in range(40)]
    for key in days:
        s3.driver.store.put(key, b"1")
    for folder in ("2026/Below", "2026/zelow"):
        s3.driver.store.put(f"{folder}/_lockgate/ids/x", b"1")
        s3.driver.store.put(f"{folder}/A.csv", b"1")
    s3.fake.behave(Options(page_size=page_size))
    seen = s3.seen_in(lambda: found.extend(info.key for info in visible_files(s3.driver.store)))
    assert found == days
    pages = -(-(len(days) + 4) // page_size)
    assert len(seen) <= pages * (1 + depth)


def test_a_folder_that_was_not_listed_is_looked_up_once(s3: S3World) -> None:
    store = s3.driver.store
    store.put("2026/_lockgate/ids/x", b"1")
    below = NestedDestinations(store)
    assert [below.containing(key) for key in ("2026/05/a", "2025/a", "a")] == ["2026", None, None]
    assert s3.seen_in(lambda: [below.containing(key) for key in ("2026/06/a", "2025/b")]) == []
