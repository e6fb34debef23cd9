"""Spark with Delta's and Iceberg's own jars: earlier turns, statistics, and what it may not write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cli import Run, document
from tests.support.commit.destination import ManualClock, World
from tests.support.table_engines import EngineError, ask
from tests.support.tables import by_log, by_spark_delta, by_spark_iceberg, in_order, publish

pytestmark = [pytest.mark.soak, pytest.mark.requires("table-engines")]

OPTIONS: dict[str, Any] = {"columns": [("x", "bigint")], "tables": ["delta", "iceberg"]}


@pytest.fixture
def table(world: World) -> World:
    """Return a table of 20 files with ten values each, which was written in the past of Spark's clock."""
    world = World(world.root, world.url, ManualClock(1_700_000_000.0))
    files = {f"part-{n:02}.parquet": pa.table({"x": range(n * 10, n * 10 + 10)}) for n in range(20)}
    assert publish(world, "a", files, **OPTIONS).tables_behind == ""
    return world


@pytest.mark.parametrize(("form", "folder"), [("delta", ""), ("iceberg", "/_iceberg")])
def test_spark_reads_one_file_of_many_for_a_predicate(table: World, form: str, folder: str) -> None:
    assert ask("files_read", form, table.url + folder, "x = 79") == (1, [{"x": 79}])


def test_spark_with_delta_reads_the_folder_as_plain_parquet_too(table: World) -> None:
    found = ask("read", "parquet", table.url, {})
    assert in_order([(row["x"],) for row in found]) == in_order(by_log(table, ["x"]))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO delta.`{url}` VALUES (1000)",
        "OPTIMIZE delta.`{url}`",
        "DELETE FROM delta.`{url}` WHERE x = 1",
        "VACUUM delta.`{url}` RETAIN 0 HOURS",
        "ALTER TABLE delta.`{url}` SET TBLPROPERTIES ('a' = 'b')",
    ],
)
def test_spark_refuses_to_write_the_delta_table(table: World, statement: str) -> None:
    expected = in_order(by_log(table, ["x"]))
    with pytest.raises(EngineError, match=r"unsupported by Delta Lake .*lockgate"):
        ask("sql", statement.format(url=table.url))
    assert publish(table, "b", {"b.parquet": pa.table({"x": [7]})}).tables_behind == ""
    assert in_order(by_spark_delta(table, ["x"])) == in_order([*by_log(table, ["x"])])
    assert in_order(by_spark_delta(table, ["x"], 1)) == expected


def test_spark_refuses_to_expire_snapshots_of_the_iceberg_table(table: World) -> None:
    publish(table, "b", {"b.parquet": pa.table({"x": [1000]})}, mode="replace")
    with pytest.raises(EngineError, match="GC is disabled"):
        ask("expire", f"{table.url}/_iceberg")


def test_what_spark_commits_to_the_iceberg_table_is_found_kept_and_named(table: World, run: Run) -> None:
    publish(table, "b", {"b.parquet": pa.table({"x": [1000]})})
    ask("append", "iceberg", f"{table.url}/_iceberg", [2000])
    foreign = Path(table.url, "_iceberg/metadata/v3.metadata.json")
    written = foreign.read_bytes()
    for command in ("status", "check"):
        (_, found) = document(run("tables", command, table.url, "--json"))
        assert "v3.metadata.json was written by another program (spark" in found["detail"]
        assert f"lockgate tables repair --yes {table.store.url}" in found["detail"]

    receipt = publish(table, "c", {"c.parquet": pa.table({"x": [3000]})})
    assert "v3.metadata.json was written by another program" in receipt.tables_behind
    assert f"lockgate tables repair --yes {table.store.url}" in receipt.tables_behind
    assert foreign.read_bytes() == written
    assert in_order(by_spark_delta(table, ["x"])) == in_order(by_log(table, ["x"]))

    assert run("tables", "repair", table.url, "--yes").exit_code == 0
    kept = Path(table.url, "_lockgate/quarantine/tables/_iceberg/metadata").glob("v3.metadata.json.*")
    assert [path.read_bytes() for path in kept] == [written]
    assert in_order(by_spark_iceberg(table, ["x"])) == in_order(by_log(table, ["x"]))
    assert json.loads(foreign.read_text())["properties"]["lockgate.turn"] == "3"
