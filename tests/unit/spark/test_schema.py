"""Columns are checked before anything is written. PySpark's types need no Java."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.schema.columns import (
    check_columns,
    ddl_type,
    file_schema,
    partition_columns,
    recorded_columns,
)

SALES = StructType().add("id", LongType()).add("Day", StringType()).add("city", StringType())


@pytest.mark.parametrize(
    "kind",
    [DayTimeIntervalType(), YearMonthIntervalType(), VariantType(), NullType(), TimeType()],
    ids=lambda kind: kind.simpleString(),
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_type_that_would_not_round_trip_is_refused_by_column(kind: DataType, nested: bool) -> None:
    held: DataType = (
        ArrayType(MapType(StringType(), StructType([StructField("x", kind)]))) if nested else kind
    )
    with pytest.raises(InvalidInputError, match=r"column 'took.*nothing was written"):
        check_columns(StructType().add("id", LongType()).add("took", held), ())


def test_partition_columns_are_found_without_regard_to_case() -> None:
    assert check_columns(SALES, ["day", "CITY"]).names == ["id", "day", "CITY"]
    assert partition_columns(SALES, ["day", "CITY"]) == ("day", "CITY")


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (
            StructType().add("id", LongType()).add("city", StringType("UNICODE_CI")),
            ["city"],
            "'city' has the collation UNICODE_CI",
        ),
        (SALES, ["month"], r"'month' does not exist; the columns are id, Day, city"),
        (SALES, ["id", "Day", "city"], "no column is left for the files: .* all of them partition columns"),
        (SALES, ["day", "Day"], "names a column twice"),
        (StructType(), [], "no column is left"),
        (StructType().add("a", LongType()).add("A", LongType()), [], "'a' exists twice"),
        (
            StructType().add("a", LongType()).add("b", BinaryType()),
            ["b"],
            "'b' is binary.*two values may be equal.*nothing was written; use hex",
        ),
        (
            StructType().add("a", LongType()).add("b", DoubleType()),
            ["b"],
            "'b' is double.*another folder; nothing was written; cast it to a decimal",
        ),
        (StructType().add("a", LongType()).add(".b", LongType()), [".b"], "readers skip; rename it"),
        (StructType().add("a", StructType()), [], "struct without fields"),
    ],
)
def test_invalid_columns_are_refused(schema: StructType, partition_by: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_columns(schema, partition_by)


def test_columns_are_recorded_as_ddl_with_partition_columns_last() -> None:
    nested = (
        StructType().add("a b", ArrayType(IntegerType())).add("c", MapType(StringType(), DecimalType(9, 2)))
    )
    schema = StructType().add("day", StringType()).add("id", LongType()).add("x", nested)
    assert recorded_columns(schema, ["day"]) == [
        ("id", "bigint"),
        ("x", "struct<`a b`:array<int>,`c`:map<string,decimal(9,2)>>"),
        ("day", "string"),
    ]
    assert file_schema(schema, ["day"]).names == ["id", "x"]


def test_a_backtick_in_a_nested_name_is_doubled() -> None:
    assert ddl_type(StructType().add("a`b", LongType())) == "struct<`a``b`:bigint>"
