"""Each version of a table is what the log's turns fold into, after any crash, race or foreign writer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import project, read_tables
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.tables.delta_log import read_state, version_key
from tests.support.cli import Run, document
from tests.support.commit.destination import Crash, World
from tests.support.commit.snapshots import one_by_one, snapshots_of
from tests.support.tables import duck, publish, write

COLUMNS: dict[str, Any] = {"columns": [("x", "bigint")], "tables": ["delta"]}


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    FAILPOINTS.arm({})
    FAILPOINTS.observer = None


def die_at(point: str) -> Callable[[str], None]:
    def observe(name: str) -> None:
        if name == point:
            raise Crash(name)

    return observe


def rows(*values: int) -> pa.Table:
    return pa.table({"x": list(values)})


def versions(world: World) -> list[int]:
    return sorted(int(path.stem) for path in Path(world.url, "_delta_log").glob("*[0-9].json"))


def assert_is_a_fold(world: World, where: str = "", *, up_to_date: bool = True) -> None:
    """Every version has the files of the log after its turn; there is one for each turn at the end."""
    found = versions(world)
    turns = world.manifest().turn
    assert found == list(range(turns if up_to_date else len(found))), where
    for version in found:
        expected = set(world.manifest(version + 1).files)
        assert set(read_state(world.store, version, first=0).files) == expected, (where, version)


def test_a_crash_at_any_call_leaves_a_prefix_of_the_log_and_recovery_brings_it_up(
    world: World, tmp_path: Path
) -> None:
    watched = one_by_one(World(tmp_path / "first", str(tmp_path / "first" / "dest")))
    publish(watched, "old", {"a=1/a.parquet": rows(1)}, **COLUMNS)
    replace = {"mode": "replace", "columns": COLUMNS["columns"]}
    seen = set()
    for snapshot in snapshots_of(
        watched,
        lambda: publish(watched, "new", {"a=1/b.parquet": rows(2)}, **replace),
        tmp_path / "snapshots",
    ):
        crashed = snapshot.world()
        decided = DestinationLog(crashed.store).manifest().turn
        assert len(versions(crashed)) in {decided - 1, decided}
        assert_is_a_fold(crashed, snapshot.points[0], up_to_date=False)
        seen.add(len(versions(crashed)) - decided)
        results = crashed.recover()
        assert all(result.ended in TERMINAL for result in results)
        if crashed.manifest().turn == len(versions(crashed)):
            assert_is_a_fold(crashed, snapshot.points[0])
        # A turn that its job did not decide is projected with the next commit.
        publish(crashed, "next", {"a=1/c.parquet": rows(3)}, columns=COLUMNS["columns"])
        assert_is_a_fold(crashed, snapshot.points[0])
    assert seen == {0, -1}


@pytest.mark.parametrize("answer", ["lost", "refuse"])
@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_projection_that_fails_fails_no_commit_and_recovery_catches_up(
    world: World, verb: str, point: str, answer: str
) -> None:
    world = one_by_one(world)
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    FAILPOINTS.arm({f"tables.{verb}.{point}": f"{answer}@{2 if verb == 'get' else 1}"})
    receipt = publish(world, "b", {"b.parquet": rows(2)})
    FAILPOINTS.arm({})
    assert receipt.rows == 1
    if receipt.tables_behind:
        assert "delta is" in receipt.tables_behind
        assert "behind: failpoint tables." in receipt.tables_behind
        (result,) = world.recover()
        assert "behind" not in result.detail
    assert not world.recover()
    assert_is_a_fold(world)


def test_turns_that_published_nothing_are_versions_without_files(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    driver = one_by_one(world)
    job = driver.open_job("lost")
    write(job, "t", "b.parquet", rows(2))
    FAILPOINTS.observer = die_at("decide.create.before")
    with pytest.raises(Crash):
        job.commit()
    FAILPOINTS.observer = None
    assert [result.ended for result in world.recover()] == [JobPhase.FAILED]
    publish(world, "c", {"c.parquet": rows(3)})
    assert DestinationLog(world.store).outcome(2).verdict == "passed"  # type: ignore[union-attr]
    assert_is_a_fold(world)
    assert sorted(DeltaTable(world.url).to_pyarrow_table()["x"].to_pylist()) == [1, 3]


def test_two_projectors_at_once_write_one_version_each(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, columns=COLUMNS["columns"])
    for number in range(8):
        publish(world, f"b{number}", {f"b{number}.parquet": rows(number)})
    run_tables(world)
    tables = read_tables(world.store)
    barrier, failed = threading.Barrier(4), []

    def catch_up() -> None:
        barrier.wait()
        failed.append(project(world.elsewhere().store, tables, 9))

    threads = [threading.Thread(target=catch_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [{}] * 4
    assert_is_a_fold(world)


def run_tables(world: World) -> None:
    from lockgate.storage_core.commit.destination.projection import enable_tables

    enable_tables(DestinationLog(world.store), ["delta"], world.clock, from_turn=1)


def test_other_programs_refuse_to_write_the_table(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1, 2)}, **COLUMNS)
    with pytest.raises(CommitFailedError, match="lockgate"):
        write_deltalake(world.url, rows(3), mode="append")
    with pytest.raises(CommitFailedError, match="lockgate"):
        DeltaTable(world.url).delete()
    assert versions(world) == [0]


def test_a_version_of_another_program_is_never_overwritten_and_named(
    world: World, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    foreign = Path(world.url, version_key(1))
    line = json.dumps({"commitInfo": {"engineInfo": "Spark/4", "operation": "OPTIMIZE"}}) + "\n"
    foreign.write_text(line)
    receipt = publish(world, "b", {"b.parquet": rows(2)})
    assert f"{world.store.url}/{version_key(1)} was written by Spark/4 OPTIMIZE" in receipt.tables_behind
    assert "lockgate tables repair --yes" in caplog.text
    publish(world, "c", {"c.parquet": rows(3)})
    assert foreign.read_text() == line
    assert versions(world) == [0, 1]
    assert not world.recover()  # for recovery could not help
    shown = run("tables", "repair", world.url)
    assert (shown.exit_code, "with --yes: _delta_log/00000000000000000001.json" in shown.stdout) == (8, True)
    assert foreign.read_text() == line
    assert run("tables", "repair", world.url, "--yes").exit_code == 0
    assert_is_a_fold(world)
    (kept,) = Path(world.url, "_lockgate/quarantine/tables/_delta_log").iterdir()
    assert kept.read_text() == line


def test_an_existing_destination_begins_with_all_live_files(world: World, run: Run) -> None:
    publish(world, "a", {"day=1/a.parquet": rows(1)})
    publish(world, "b", {"day=1/b.parquet": rows(2), "day=2/b.parquet": rows(3)})
    assert run("tables", "status", world.url).stdout == (
        "there are no tables; `lockgate tables enable` makes one\n"
    )
    (status,) = document(run("tables", "enable", world.url, "--delta", "--json"))
    assert (status["first_turn"], status["turn"], status["behind"]) == (2, 2, 0)
    publish(world, "c", {"day=3/c.parquet": rows(4)})
    table = DeltaTable(world.url)
    assert (table.version(), sorted(table.to_pyarrow_table()["x"].to_pylist())) == (2, [1, 2, 3, 4])
    statistics = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {row["max.x"] for row in statistics} == {1, 2, 3, 4}
    assert sorted(duck().execute(f"SELECT x FROM delta_scan('{world.url}')").fetchall()) == [
        (1,), (2,), (3,), (4,)
    ]  # fmt: skip
    (checked,) = document(run("tables", "check", world.url, "--json"))
    assert (checked["files"], checked["rows"], checked["gone"]) == (4, 4, [])
    assert run("tables", "disable", world.url, "--delta").exit_code == 0
    publish(world, "d", {"day=4/d.parquet": rows(5)})
    assert DeltaTable(world.url).version() == 2
    assert run("tables", "enable", world.url, "--delta").exit_code == 0
    assert DeltaTable(world.url).version() == 3


def test_check_names_what_a_reader_sees_otherwise(world: World, run: Run) -> None:
    publish(world, "a", {"a.parquet": rows(1), "b.parquet": rows(2)}, **COLUMNS)
    assert run("tables", "check", world.url).exit_code == 0
    (gone, *_) = sorted(world.manifest().files)
    Path(world.url, gone).unlink()
    shown = run("tables", "check", world.url)
    assert (shown.exit_code, f"deleted files: {gone}" in shown.stdout) == (3, True)


def test_a_destination_with_a_delta_table_of_another_program_is_refused(world: World) -> None:
    write_deltalake(world.url, rows(1))
    with pytest.raises(Exception, match="is a Delta table of another program"):
        world.open_job("a", **COLUMNS)


def test_columns_without_a_table_type_leave_the_table_behind_with_the_reason(world: World) -> None:
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    receipt = publish(world, "b", {"b.csv.parquet": rows(2), "c=1/b.parquet": rows(2)})
    assert "files of a table have the same partition columns" in receipt.tables_behind
    assert len(world.manifest().files) == 3


def test_one_more_turn_costs_the_same_whatever_the_length_of_the_log(world: World) -> None:
    world = one_by_one(world)
    publish(world, "a", {"a.parquet": rows(1)}, **COLUMNS)
    costs = []
    for turn in range(2, 9):
        publish(world, f"b{turn}", {f"b{turn}.parquet": rows(turn)})
        Path(world.url, version_key(turn - 1)).unlink()
        store = InstrumentedStore(world.store)
        assert project(store, read_tables(world.store), turn) == {}
        costs.append((dict(store.requests), Path(world.url, version_key(turn - 1)).stat().st_size))
    assert len({str(cost) for cost in costs}) == 1
    # The outcome, its list and statistics, the version before, and the new one.
    assert costs[0][0] == {"get": 4, "create": 1}


def test_columns_of_footers_follow_those_of_earlier_jobs(world: World) -> None:
    kind = pa.struct({"a": pa.int32()})
    first = pa.table({"x": pa.array([1], pa.int32()), "s": pa.array([{"a": 1}], kind)})
    publish(
        world, "a", {"a.parquet": first}, columns=[("x", "int"), ("s", "struct<a:int>")], tables=["delta"]
    )
    publish(world, "b", {"b.parquet": pa.table({"x": [2**40], "s": pa.array([{"a": 2}], kind), "n": ["n"]})})
    publish(world, "c", {"c.parquet": first})
    names = {field.name: str(field.type) for field in DeltaTable(world.url).schema().fields}
    assert (names["x"], list(names)) == ('PrimitiveType("long")', ["x", "s", "n"])
    receipt = publish(world, "d", {"d.parquet": pa.table({"x": ["text"]})})
    assert "column 'x' of d-" in receipt.tables_behind


def test_readers_use_the_statistics_of_each_file(world: World) -> None:
    publish(world, "a", {f"part-{n}.parquet": rows(n * 10, n * 10 + 9) for n in range(20)}, **COLUMNS)
    query = f"EXPLAIN ANALYZE SELECT x FROM delta_scan('{world.url}') WHERE x = 79"
    ((_, plan),) = duck().execute(query).fetchall()
    assert "Scanning Files: 1/20" in plan
    files = DeltaTable(world.url).to_pyarrow_dataset().get_fragments(filter=pa.compute.field("x") == 79)
    assert len([file for file in files if file.count_rows(filter=pa.compute.field("x") == 79)]) == 1
