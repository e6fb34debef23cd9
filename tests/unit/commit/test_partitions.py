"""Conflicts by partition: only partitions that receive data are checked or replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination.conflict_mode import EVERYWHERE, Scope, partition_of
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from tests.support.commit.destination import World, write

OLD = {"day=1/a.csv": b"old 1", "day=2/b.csv": b"old 2", "top.csv": b"old top"}
NEW = {"day=2/c.csv": b"new 2", "day=3/d.csv": b"new 3"}


@pytest.fixture
def table(world: World) -> World:
    world.run("old", OLD)
    return world


def put(world: World, key: str) -> None:
    path = Path(world.url) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"theirs")


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("a.csv", ""),
        ("day=1/a.csv", "day=1"),
        ("day=1/hour=2/a.csv", "day=1/hour=2"),
        ("day=1/x/a.csv", "day=1"),
        ("lake/day=1/a=b.csv", "lake/day=1"),
        ("2026/05/a.csv", "2026/05"),
    ],
)
def test_a_partition_is_the_folder_down_to_the_last_column_value(key: str, partition: str) -> None:
    assert partition_of(key) == partition


def test_the_listed_prefixes_cover_every_partition_once() -> None:
    assert EVERYWHERE.prefixes() == [""]
    assert Scope(frozenset({"day=1", "day=10"})).prefixes() == ["day=1/", "day=10/"]
    assert Scope(frozenset({"2026", "2026/05"})).prefixes(["2026/05/07/a", "2027/a"]) == ["2026/", "2027/"]
    assert Scope(frozenset({"", "day=1"})).prefixes() == [""]
    assert Scope(frozenset()).prefixes() == []


@pytest.mark.parametrize(
    "options", [{"committer": "partitioned"}, {"committer": "magic", "scope": "partitions"}]
)
def test_replace_removes_only_the_partitions_that_receive_data(table: World, options: dict[str, str]) -> None:
    put(table, "day=2/theirs.csv")
    put(table, "day=22/theirs.csv")
    receipt = table.run("new", NEW, mode="replace", **options).receipt
    assert table.visible() == {
        "day=1/a.csv": b"old 1",
        "top.csv": b"old top",
        "day=22/theirs.csv": b"theirs",
        **NEW,
    }
    assert receipt is not None
    assert receipt.removed_files == 2
    assert set(table.live()) == set(table.keys()) - {"day=22/theirs.csv"}


def test_a_file_at_the_top_replaces_files_at_the_top_and_no_partition(table: World) -> None:
    table.run("new", {"new.csv": b"n"}, mode="replace", scope="partitions")
    assert table.visible() == {"day=1/a.csv": b"old 1", "day=2/b.csv": b"old 2", "new.csv": b"n"}


@pytest.mark.parametrize("existing", ["managed", "unmanaged"])
def test_fail_refuses_a_partition_that_has_data_when_the_job_commits(table: World, existing: str) -> None:
    if existing == "unmanaged":
        put(table, "day=3/theirs.csv")
    path = "day=1/x.csv" if existing == "managed" else "day=3/x.csv"
    before = table.visible()
    job = table.open_job("new", mode="fail", committer="partitioned")
    write(job, "t", {path: b"x"})
    with pytest.raises(ConflictError, match="mode is fail; nothing was changed"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert table.visible() == before
    assert table.open_uploads() == []


def test_fail_accepts_partitions_that_are_empty(table: World) -> None:
    new = {"day=7/x.csv": b"x"}
    table.run("new", new, mode="fail", committer="partitioned")
    assert table.visible() == {**OLD, **new}


def test_a_recomputation_removes_its_earlier_files_from_every_partition(table: World) -> None:
    table.run("new", {"day=2/c.csv": b"1", "day=5/e.csv": b"1"}, mode="replace", committer="partitioned")
    table.run("new", {"day=2/c.csv": b"2"}, mode="replace", committer="partitioned")
    assert table.visible() == {"day=1/a.csv": b"old 1", "top.csv": b"old top", "day=2/c.csv": b"2"}
    assert table.live() == table.keys()


def test_the_partitioned_committer_refuses_the_scope_of_the_whole_destination(world: World) -> None:
    with pytest.raises(InvalidInputError, match="resolves conflicts by partition"):
        world.open_job("new", committer="partitioned", scope="destination")
    with pytest.raises(
        InvalidInputError, match="scope 'tables' is not known; use one of destination, partitions"
    ):
        world.open_job("new", scope="tables")
