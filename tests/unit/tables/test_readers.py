"""Row for row: each reader of a table sees what the log has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from tests.support.commit.destination import World
from tests.support.tables import Reader, by_listing, by_log, every_reader, in_order, publish

COLUMNS = [("x", "bigint"), ("day", "string"), ("place", "string")]
BEFORE = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
AFTER = dt.datetime(2026, 1, 1, 0, 0, 0, 1)  # noqa: DTZ001
BEFORE_UTC, AFTER_UTC = BEFORE.replace(tzinfo=dt.UTC), AFTER.replace(tzinfo=dt.UTC)
STRUCT = pa.struct({"a b": pa.int32(), "c": pa.list_(pa.string())})
MATRIX: Mapping[str, tuple[str, pa.DataType, list[Any]]] = {
    "byte": ("tinyint", pa.int8(), [-128, 127, None]),
    "short": ("smallint", pa.int16(), [-(2**15), 5, None]),
    "int": ("int", pa.int32(), [-(2**31), 5, None]),
    "long": ("bigint", pa.int64(), [-(2**63), 2**63 - 1, None]),
    "float": ("float", pa.float32(), [0.5, float("-inf"), None]),
    "double": ("double", pa.float64(), [1e300, -0.1, None]),
    "nan": ("double", pa.float64(), [1.0, float("inf"), None]),
    "bool": ("boolean", pa.bool_(), [True, False, None]),
    "text": ("string", pa.string(), ["", "é 🙂 " + "x" * 100, None]),
    "binary": ("binary", pa.binary(), [b"", b"\x00\xff", None]),
    "date": ("date", pa.date32(), [dt.date(1066, 10, 14), dt.date(9999, 12, 31), None]),
    "moment": ("timestamp", pa.timestamp("us", "UTC"), [BEFORE_UTC, AFTER_UTC, None]),
    "naive": ("timestamp_ntz", pa.timestamp("us"), [BEFORE, AFTER, None]),
    "money": ("decimal(38,18)", pa.decimal128(38, 18), [Decimal("-0.000000000000000001"), Decimal(12), None]),
    "small": ("decimal(9,2)", pa.decimal128(9, 2), [Decimal("-1.25"), Decimal(7), None]),
    "list": ("array<bigint>", pa.list_(pa.int64()), [[1, None], [], None]),
    "struct": ("struct<`a b`:int,c:array<string>>", STRUCT, [{"a b": 1, "c": ["x"]}, {"c": None}, None]),
    "map": ("map<string,double>", pa.map_(pa.string(), pa.float64()), [[("k", 1.5)], [], None]),
    "with space": ("string", pa.string(), ["a", "b", None]),
    "with.dot": ("bigint", pa.int64(), [1, 2, None]),
    "näme": ("string", pa.string(), ["ü", "", None]),
}  # fmt: skip


def table(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


@every_reader
def test_each_reader_sees_appends_and_replaced_partitions_row_for_row(world: World, read: Reader) -> None:
    options: dict[str, Any] = {"columns": COLUMNS, "tables": ["delta", "iceberg"]}
    first = {
        "day=2026-01-01/place=a%3Ab %25/x.parquet": table(x=[1, 2]),
        "day=2026-01-01/place=__HIVE_DEFAULT_PARTITION__/x.parquet": table(x=[3]),
        "day=2026-01-02/place=Sé.o/x.parquet": table(x=[4, None]),
    }
    publish(world, "first", first, **options)
    publish(world, "second", {"day=2026-01-03/place=x+y&z;#/x.parquet": table(x=[5])}, **options)
    replaced = {"day=2026-01-01/place=__HIVE_DEFAULT_PARTITION__/x.parquet": table(x=[6, 7])}
    publish(world, "third", replaced, mode="replace", scope="partitions", **options)
    expected = in_order(by_log(world, ["x", "day", "place"]))
    assert in_order(by_listing(world, ["x", "day", "place"], ["day", "place"])) == expected
    assert in_order(read(world, ["x", "day", "place"])) == expected
    assert len(expected) == 7
    publish(world, "fourth", {"place=a/y.parquet": table(x=[8])}, mode="replace", **options)
    assert in_order(read(world, ["x", "place"])) == in_order([(8, "a")])


EPOCH_EVE = "1969-12-31 23%3A59%3A59.999999"
TYPED: Mapping[str, tuple[str, list[tuple[str, Any]]]] = {
    "date": ("date", [("2026-01-01", dt.date(2026, 1, 1)), ("1969-12-31", dt.date(1969, 12, 31))]),
    "int": ("int", [("-7", -7), ("12", 12)]),
    "bool": ("boolean", [("true", True), ("false", False)]),
    "decimal": ("decimal(9,2)", [("1.25", Decimal("1.25")), ("300.00", Decimal("300.00"))]),
    "naive": ("timestamp_ntz", [("2026-01-01 00%3A00%3A00.000001", AFTER), (EPOCH_EVE, BEFORE)]),
}  # fmt: skip


@every_reader
@pytest.mark.parametrize("kind", TYPED)
def test_each_reader_sees_partition_columns_of_their_types(world: World, read: Reader, kind: str) -> None:
    (name, ((first, one), (second, two))) = TYPED[kind]
    options: dict[str, Any] = {"columns": [("x", "bigint"), ("a b", name)]}
    null = "a b=__HIVE_DEFAULT_PARTITION__/x.parquet"
    files = {
        f"a b={first}/x.parquet": table(x=[1]),
        f"a b={second}/x.parquet": table(x=[2]),
        null: table(x=[3]),
    }
    publish(world, "a", files, tables=["delta", "iceberg"], **options)
    publish(
        world, "b", {f"a b={second}/y.parquet": table(x=[4])}, mode="replace", scope="partitions", **options
    )
    assert publish(world, "c", {null: table(x=[5])}, **options).tables_behind == ""
    expected = in_order([(1, one), (4, two), (3, None), (5, None)])
    assert in_order(read(world, ["x", "a b"])) == expected


@every_reader
def test_each_reader_sees_an_evolved_schema_row_for_row(world: World, read: Reader) -> None:
    evolve: dict[str, Any] = {"evolve_schema": True}
    publish(world, "a", {"a.parquet": pa.table({"x": pa.array([1], pa.int32()), "gone": ["g"]})},
        columns=[("x", "int"), ("gone", "string")], tables=["delta", "iceberg"])  # fmt: skip
    publish(world, "b", {"b.parquet": table(x=[2**40], new=["n"])},
        columns=[("x", "bigint"), ("new", "string")], **evolve)  # fmt: skip
    assert in_order(read(world, ["x", "new"])) == in_order([(1, None), (2**40, "n")])
    publish(world, "c", {"c.parquet": table(x=[3], gone=["h"])},
        columns=[("x", "bigint"), ("gone", "string")], **evolve)  # fmt: skip
    rows = [(1, "g"), (2**40, None), (3, "h")]
    assert in_order(read(world, ["x", "gone"])) == in_order(rows)


@every_reader
@pytest.mark.parametrize("recorded", [True, False])
def test_each_reader_sees_every_type_row_for_row(world: World, read: Reader, recorded: bool) -> None:
    data = pa.table({name: pa.array(values, kind) for name, (_, kind, values) in MATRIX.items()})
    columns = [(name, kind) for name, (kind, _, _) in MATRIX.items()] if recorded else None
    publish(world, "types", {"p=1/a.parquet": data}, columns=columns, tables=["delta", "iceberg"])
    names = [*MATRIX, "p"]
    rows = [(*(row[name] for name in MATRIX), "1") for row in data.to_pylist()]
    assert in_order(read(world, names)) == in_order(rows)


@every_reader
def test_each_reader_reads_each_kept_turn_as_the_log_does(world: World, read: Reader) -> None:
    set_history_rule(world.store, HistoryRule(keep_s=0, keep_turns=9, in_place=True))
    options: dict[str, Any] = {"columns": [("x", "bigint"), ("p", "int")], "tables": ["delta", "iceberg"]}
    publish(world, "a", {"p=1/a.parquet": table(x=[1]), "p=2/a.parquet": table(x=[2])}, **options)
    publish(world, "b", {"p=1/b.parquet": table(x=[3])}, mode="replace", scope="partitions", **options)
    publish(world, "c", {"p=3/c.parquet": table(x=[4])}, **options)
    revert_to_turn(world.url, 1, settings=world.settings, clock=world.clock)
    publish(world, "d", {"p=3/d.parquet": table(x=[5])}, mode="replace", **options)
    seen = [in_order(read(world, ["x"], turn)) for turn in range(1, 6)]
    assert seen == [in_order(by_log(world, ["x"], turn)) for turn in range(1, 6)]
    assert seen == [in_order([(x,) for x in values]) for values in ([1, 2], [2, 3], [2, 3, 4], [1, 2], [5])]


@pytest.mark.parametrize("kind", ["uint64", "array<" * 5_000])
def test_a_type_that_no_table_has_is_refused_at_the_set_up(world: World, kind: str) -> None:
    with pytest.raises(Exception, match=f"column 'x' has the type '{kind[:200]}', which Delta and Iceberg"):
        world.open_job("a", columns=[("x", kind)], tables=["delta", "iceberg"])
    assert not any(world.store.pages("_lockgate/jobs/"))
