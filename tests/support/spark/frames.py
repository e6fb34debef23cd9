"""Data frames of all types: as partition columns, and with dates and timestamps of all ages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARQUET: Final = "spark.sql.parquet"
_LEGACY: Final = {
    f"{_PARQUET}.datetimeRebaseModeInWrite": "LEGACY",
    f"{_PARQUET}.int96RebaseModeInWrite": "LEGACY",
}
PARQUET_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "int96": {f"{_PARQUET}.outputTimestampType": "INT96"},
    "milliseconds": {f"{_PARQUET}.outputTimestampType": "TIMESTAMP_MILLIS"},
    "microseconds": {f"{_PARQUET}.outputTimestampType": "TIMESTAMP_MICROS"},
    "julian int96": {f"{_PARQUET}.outputTimestampType": "INT96", **_LEGACY},
    "julian microseconds": {f"{_PARQUET}.outputTimestampType": "TIMESTAMP_MICROS", **_LEGACY},
    "hive's layout": {f"{_PARQUET}.writeLegacyFormat": "true"},
    "no field ids": {f"{_PARQUET}.fieldId.write.enabled": "false"},
}

_VALUES: Final = {
    "small decimal(38,18)": "0.000000000000000001 0 -1.5 99999999999999999999.999999999999999999",
    "even decimal(4,0)": "0 -7 9999",
    "i int": "0 -2147483648 2147483647",
    "tiny tinyint": "-128 127",
    "b boolean": "true false",
    "day date": "0001-01-01 1582-10-04 1969-12-31 2026-11-23 9999-12-31",
    "t timestamp": "0001-01-02T03:04:05 1850-06-01T00:00:00.1 2026-03-29T02:30:00 2026-10-25T02:30:00.000001",
    "n timestamp_ntz": "0001-01-01T00:00:00 2026-11-23T01:02:03.040 9999-12-31T23:59:59.999999",
}
"""Values of each type, as Spark's literals; every row takes the next one, and the last column is text."""

TEXTS: Final = (
    "a b",
    "",
    "a/b",
    "100%",
    "x=y:z",
    "\"#'*?\\{[]^}~&+,;@$",
    "São Paulo",
    "tab\tnew\nline\x7f",
    "%2F",
    ".",
    "-",
)


def every_type(spark: SparkSession) -> DataFrame:
    """Return a row for each value, with a column for each type that can be a folder, and `id`."""
    lists = {
        column: ", ".join(f"CAST('{value}' AS {column.split(' ', 1)[1]})" for value in values.split())
        for column, values in _VALUES.items()
    }
    picks = [
        f"element_at(array({values}), CAST(id % {len(_VALUES[column].split())} + 1 AS int)) "
        f"AS {column.split()[0]}"
        for column, values in lists.items()
    ]
    texts = spark.createDataFrame(
        [(number, text) for number, text in enumerate(TEXTS)], "id long, text string"
    )
    picked = texts.unionByName(spark.range(11, 14), allowMissingColumns=True).selectExpr("id", "text", *picks)
    return picked.coalesce(1)


def of_all_ages(spark: SparkSession) -> DataFrame:
    """Return rows of all ages, with a comment, metadata and field ids."""
    rows = spark.sql(
        """
        SELECT * FROM VALUES
          (1, TIMESTAMP'0001-01-02 03:04:05', DATE'0001-01-01', 1.25BD, array(1)),
          (2, TIMESTAMP'1582-10-04 00:00:00', DATE'1582-10-04', 2.25BD, array(1, 2)),
          (3, TIMESTAMP'1899-12-31 23:00:00', DATE'1582-10-15', null, null),
          (4, TIMESTAMP'2026-11-29 00:00:00', DATE'2026-11-29', 3BD, array(null)),
          (5, TIMESTAMP'9999-12-31 23:59:59', DATE'9999-12-31', 4BD, array())
        AS t(id, moment, day, price, list)
        """
    )
    fields = [
        StructField(
            field.name,
            field.dataType,
            metadata={"comment": f"the {field.name}", "parquet.field.id": number, "unit": "none"},
        )
        for number, field in enumerate(rows.schema.fields, start=1)
    ]
    return rows.to(StructType(fields))


def nested(spark: SparkSession) -> DataFrame:
    """Return a value ten levels deep, with and without gaps."""
    expression = "id"
    for depth in range(10):
        kind = ("array({0})", "named_struct('level {1}', {0})", "map('key', {0})")[depth % 3]
        expression = kind.format(expression, depth)
    return spark.range(5).selectExpr("id", f"{expression} AS deep", f"IF(id = 2, NULL, {expression}) AS gaps")


def texts(frame: DataFrame) -> list[tuple[str | None, ...]]:
    """Return all values as Spark writes them, in order of their texts."""
    casts = frame.selectExpr(*(f"string(`{name}`) AS `{name}`" for name in frame.columns))
    return sorted(map(tuple, casts.collect()), key=repr)
