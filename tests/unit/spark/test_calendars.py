"""Lockgate's own reader reads each timestamp that Parquet can hold, or refuses a file by name."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from lockgate import read_manifest
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.reader.published_schema import published_schema
from lockgate.storage_core.stores import open_store
from tests.support.spark.one_column import published, rows

FAR = [dt.datetime(year, 12, 31, 23, 59, 59, 999_999, dt.UTC) for year in (1, 1676, 2263, 9999)]
LEGACY = {b"org.apache.spark.version": b"4.3.0", b"org.apache.spark.legacyDateTime": b""}
SPARK_2 = {b"org.apache.spark.version": b"2.4.8"}
SPARK_4 = {b"org.apache.spark.version": b"4.3.0"}


def test_int96_is_read_beyond_the_years_that_nanoseconds_reach(destination: str, settings: Settings) -> None:
    published(destination, settings, pa.array(FAR, pa.timestamp("us")), use_deprecated_int96_timestamps=True)
    assert rows(destination, settings, pa.timestamp("us", "UTC")) == FAR
    store, manifest = open_store(destination, settings), read_manifest(destination, settings=settings)
    assert published_schema(store, manifest) == "`x` timestamp"  # as Spark takes INT96


@pytest.mark.parametrize("metadata", [LEGACY, SPARK_2], ids=["legacy mode", "Spark 2"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([dt.date(2026, 11, 29), dt.date(1582, 10, 14)]),
        pa.array([dt.datetime(1899, 12, 31, 23, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        pa.array([[{"day": dt.date(1, 1, 1)}], None]),
        pa.array([[("k", dt.date(1, 1, 1))]], pa.map_(pa.string(), pa.date32())),
    ],
    ids=["date", "timestamp", "in a list", "in a map"],
)
def test_a_value_of_the_julian_calendar_is_refused_with_the_file_and_what_to_do(
    destination: str, settings: Settings, column: pa.Array, metadata: dict[bytes, bytes]
) -> None:
    published(destination, settings, column, metadata=metadata)
    with pytest.raises(InvalidInputError, match=r"a-\w+\.parquet: column 'x' .* by_spark=True"):
        rows(destination, settings, column.type)


@pytest.mark.parametrize(
    ("day", "metadata"),
    [(dt.date(1582, 10, 15), LEGACY), (dt.date(2026, 1, 1), SPARK_2), (dt.date(1, 1, 1), SPARK_4)],
)
def test_a_day_that_both_calendars_name_alike_is_read(
    destination: str, settings: Settings, day: dt.date, metadata: dict[bytes, bytes]
) -> None:
    published(destination, settings, pa.array([day, None]), metadata=metadata)
    assert rows(destination, settings, pa.date32()) == [day, None]
