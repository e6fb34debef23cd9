"""Reading through the fsspec file system: only whole jobs, in the state of one turn of the log."""

from __future__ import annotations

import pickle
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem
from tests.support.commit.destination import World, overlapping, plain, write

DAYS = {"day=1/a.csv": b"one", "day=2/b.csv": b"three", "c d é%2F?.csv": b""}


@pytest.fixture
def fs(world: World) -> LockgateFileSystem:
    return new_fs(world)


def new_fs(world: World, **options: object) -> LockgateFileSystem:
    return LockgateFileSystem(settings=world.settings, **options)


def contents(fs: LockgateFileSystem, url: str) -> dict[str, bytes]:
    """Return the contents of a directory by relative path, without the short id."""
    return {plain(path.removeprefix(f"{url}/")): fs.cat_file(path) for path in fs.find(url)}


def test_live_files_are_listed_and_read_back(world: World, fs: LockgateFileSystem) -> None:
    world.run("day", DAYS)
    assert contents(fs, world.url) == DAYS
    assert contents(fs, f"{world.url}/day=1") == {"a.csv": b"one"}
    assert [plain(path) for path in fs.glob(f"{world.url}/day=*/*.csv")] == [
        f"{world.url}/day=1/a.csv",
        f"{world.url}/day=2/b.csv",
    ]
    assert [found["type"] for found in fs.ls(world.url)] == ["file", "directory", "directory"]
    assert fs.du(world.url) == 8
    assert fs.isdir(world.url)
    assert fs.isdir(f"lockgate://{world.url}/day=1/")
    assert not fs.isdir(f"{world.url}/day=3")


def test_file_information_has_the_size_the_job_and_the_completion_time(
    world: World, fs: LockgateFileSystem
) -> None:
    job = world.run("day", {"a.csv": b"one"})
    (path,) = fs.find(world.url)
    assert fs.info(path) == {"name": path, "size": 3, "type": "file", "rows": None, "job_id": job.job_id}
    assert fs.ls(path) == [fs.info(path)]
    assert abs((fs.modified(path) - datetime.now(UTC)).total_seconds()) < 600


def test_any_range_of_a_file_is_read(world: World, fs: LockgateFileSystem) -> None:
    data = bytes(range(256)) * 40
    world.run("day", {"a.bin": data})
    (path,) = fs.find(world.url)
    with fs.open(path, "rb", block_size=1000) as file:
        file.seek(-10, 2)
        assert file.read() == data[-10:]
        file.seek(3000)
        assert file.read(2500) == data[3000:5500]
        file.seek(len(data))
        assert file.read(5) == b""
    assert fs.cat_file(path, start=-3) == data[-3:]
    assert fs.tail(path, 4) == data[-4:]


def test_unpublished_hidden_and_foreign_files_are_not_listed(world: World, fs: LockgateFileSystem) -> None:
    world.run("day", {"a.csv": b"one"})
    world.store.put("foreign.csv", b"not of any job")
    world.store.put("_hidden/b.csv", b"hidden")
    with world.open_job("next") as job:
        write(job, "t", {"b.csv": b"two"})
        assert contents(fs, world.url) == {"a.csv": b"one"}
        for name in ("foreign.csv", "_SUCCESS", "_lockgate", "_lockgate/store.json", "_hidden/b.csv"):
            assert not fs.exists(f"{world.url}/{name}")
            with pytest.raises(FileNotFoundError, match="not among what is live"):
                fs.open(f"{world.url}/{name}")


def test_a_directory_is_not_a_file(world: World, fs: LockgateFileSystem) -> None:
    world.run("day", DAYS)
    with pytest.raises(IsADirectoryError):
        fs.open(f"{world.url}/day=1")


def test_readers_see_the_old_job_or_the_new_one_at_every_step_of_a_replace(world: World) -> None:
    world.run("old", {"a.csv": b"old", "b.csv": b"old"})
    old = new_fs(world).find(world.url)
    seen: list[list[str]] = []
    here = threading.local()

    def look(point: str) -> None:
        if not getattr(here, "looking", False):
            here.looking = True
            seen.append(new_fs(world).find(world.url))
            here.looking = False

    with world.open_job("new", mode="replace") as job:
        for name in ("a", "b", "c"):
            write(job, name, {f"{name}.csv": b"new"})
        FAILPOINTS.observer = look
        try:
            job.commit()
        finally:
            FAILPOINTS.observer = None
    new = new_fs(world).find(world.url)
    assert len(new) == 3
    assert all(names in (old, new) for names in seen)
    assert old in seen
    assert new in seen


def test_a_walk_sees_one_turn_and_the_next_walk_the_newest(world: World, fs: LockgateFileSystem) -> None:
    world.run("one", {"day=1/a.csv": b"1", "day=2/a.csv": b"1"})
    walk = fs.walk(world.url)
    seen = [next(walk)]
    world.run("two", {"day=1/b.csv": b"2", "day=2/b.csv": b"2"})
    seen += walk
    assert sorted(plain(name) for _, _, files in seen for name in files) == ["a.csv", "a.csv"]
    assert len(fs.find(world.url)) == 4


def test_a_descent_by_listings_sees_one_turn_until_it_starts_over(
    world: World, fs: LockgateFileSystem
) -> None:
    world.run("one", {"day=1/a.csv": b"1"})
    assert len(fs.ls(world.url)) == 1
    world.run("two", {"day=1/b.csv": b"2", "day=2/b.csv": b"2"})
    assert len(fs.ls(f"{world.url}/day=1")) == 1
    assert len(fs.ls(world.url)) == 2
    assert len(fs.ls(f"{world.url}/day=1")) == 2


def test_a_new_file_is_found_by_its_name_without_a_listing(world: World, fs: LockgateFileSystem) -> None:
    world.run("one", {"a.csv": b"1"})
    assert len(fs.ls(world.url)) == 1
    world.run("two", {"b.csv": b"2"})
    (new,) = (path for path in new_fs(world).find(world.url) if plain(path).endswith("/b.csv"))
    assert fs.exists(new)
    assert fs.cat_file(new) == b"2"


def test_a_walk_over_an_unchanged_destination_costs_one_listing(world: World, fs: LockgateFileSystem) -> None:
    world.run("day", DAYS)
    fs.find(world.url)
    calls: list[str] = []
    FAILPOINTS.observer = calls.append
    try:
        paths = fs.find(world.url)
        assert len([fs.info(path) for path in paths]) == 3
        assert all(fs.isfile(path) for path in paths)
    finally:
        FAILPOINTS.observer = None
    assert calls == ["idle.list.before", "idle.list.after"]


def test_a_replaced_file_stays_readable_by_name_while_the_store_has_it(
    world: World, fs: LockgateFileSystem
) -> None:
    world.run("old", {"a.csv": b"old"})
    (old,) = fs.find(world.url)
    world.keep(turns=1)
    world.run("new", {"a.csv": b"new"}, mode="replace")
    assert contents(fs, world.url) == {"a.csv": b"new"}
    assert fs.cat_file(old) == b"old"
    assert not new_fs(world).exists(old)


def test_the_error_for_a_deleted_replaced_file_names_the_remedy(world: World, fs: LockgateFileSystem) -> None:
    world.run("old", {"a.csv": b"old"})
    (old,) = fs.find(world.url)
    world.run("new", {"a.csv": b"new"}, mode="replace")
    with pytest.raises(FileNotFoundError, match=r"live at turn 1, and deleted since: .* list again"):
        fs.cat_file(old)


def test_a_file_changed_outside_the_log_is_not_read_truncated(world: World, fs: LockgateFileSystem) -> None:
    world.run("day", {"a.csv": b"long enough"})
    (path,) = fs.find(world.url)
    Path(path).write_bytes(b"short")
    with pytest.raises(OSError, match="not the file that turn 1 published"):
        fs.cat_file(path)


def test_as_of_always_shows_the_same_older_turn(world: World) -> None:
    world.run("one", {"a.csv": b"1"})
    world.run("two", {"b.csv": b"2"})
    first, empty = new_fs(world, as_of=1), new_fs(world, as_of=0)
    assert contents(first, world.url) == {"a.csv": b"1"}
    assert contents(empty, world.url) == {}
    world.run("three", {"c.csv": b"3"})
    assert contents(first, world.url) == {"a.csv": b"1"}
    assert len(new_fs(world, as_of=3).find(world.url)) == 3


@pytest.mark.parametrize("as_of", [-1, "-1", 1.5, True])
def test_an_invalid_turn_is_refused(world: World, as_of: object) -> None:
    with pytest.raises(InvalidInputError, match="as_of="):
        new_fs(world, as_of=as_of)


def test_a_turn_beyond_the_log_is_refused(world: World) -> None:
    world.run("one", {"a.csv": b"1"})
    with pytest.raises(InvalidInputError, match="turns 0 to 1"):
        new_fs(world, as_of=2).ls(world.url)


@overlapping()
def test_the_nearest_destination_above_a_path_is_read(world: World) -> None:
    inner = World(world.root, f"{world.url}/inner", world.clock)
    world.run("outer", {"a.csv": b"outer", "inner/x.csv": b"outer, beside"})
    inner.run("inner", {"day=1/b.csv": b"inner"})
    fs = new_fs(world)
    assert contents(fs, inner.url) == {"day=1/b.csv": b"inner"}
    assert contents(fs, f"{inner.url}/day=1") == {"b.csv": b"inner"}
    assert contents(fs, world.url) == {"a.csv": b"outer", "inner/x.csv": b"outer, beside"}


@overlapping()
def test_an_explicitly_named_destination_is_read(world: World) -> None:
    inner = World(world.root, f"{world.url}/inner", world.clock)
    world.run("outer", {"inner/x.csv": b"outer"})
    inner.run("inner", {"b.csv": b"inner"})
    for name in (world.url, f"lockgate://{world.url}/", f"file://{world.url}"):
        fs = new_fs(world, destination=name)
        assert contents(fs, inner.url) == {"x.csv": b"outer"}
        with pytest.raises(FileNotFoundError, match="not below"):
            fs.info(f"{world.url}-beside/a.csv")


def test_a_path_where_no_job_was_set_up_has_no_published_files(world: World, fs: LockgateFileSystem) -> None:
    with pytest.raises(FileNotFoundError, match="no job was ever set up here or in a directory above"):
        fs.ls(world.url)
    assert fs.find(world.url) == []
    assert not fs.exists(world.url)
    with world.open_job("day"):
        assert fs.ls(world.url) == []


def test_an_error_of_a_destination_is_not_reported_as_a_missing_file(
    world: World, fs: LockgateFileSystem
) -> None:
    with pytest.raises(InvalidInputError, match="write lockgate:///directory"):
        fs.exists("relative/path")


def test_a_pickled_file_system_reads_the_same_files_elsewhere(world: World) -> None:
    world.run("one", {"a.csv": b"1"})
    world.run("two", {"b.csv": b"2"})
    copy = pickle.loads(pickle.dumps(new_fs(world, as_of=1)))
    assert contents(copy, world.url) == {"a.csv": b"1"}
