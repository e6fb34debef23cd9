"""A reader reads a column as a wider type, and refuses a narrower one with the column's name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.parquet.widening import fits
from lockgate.storage_core.settings import Settings
from tests.support.spark.one_column import published, rows

NOON = dt.datetime.fromisoformat("2026-11-23T13:45")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([NOON], pa.timestamp("us")), pa.date32()),
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array([0.1], pa.float64()), pa.float32()),
        (pa.array([1.0], pa.float64()), pa.int64()),
        (pa.array(["1"]), pa.int32()),
        (pa.array([Decimal("1.25")], pa.decimal128(4, 2)), pa.decimal128(4, 1)),
        (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.int32())),
    ],
)
def test_a_narrower_type_is_refused_with_the_name_of_the_column(
    destination: str, settings: Settings, column: pa.Array, kind: pa.DataType
) -> None:
    published(destination, settings, column)

    with pytest.raises(InvalidInputError, match=r"a-\w+\.parquet: column 'x' is .* without loss"):
        rows(destination, settings, kind)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        (pa.array([7], pa.int32()), pa.int64(), 7),
        (pa.array([7], pa.int8()), pa.float64(), 7.0),
        (pa.array([0.5], pa.float32()), pa.float64(), 0.5),
        (pa.array([7], pa.int64()), pa.decimal128(20, 1), Decimal("7.0")),
        (pa.array([Decimal("1.25")], pa.decimal128(4, 2)), pa.decimal128(6, 3), Decimal("1.250")),
        (pa.array([NOON.date()], pa.date32()), pa.timestamp("us"), dt.datetime.fromisoformat("2026-11-23")),
        (pa.array([NOON], pa.timestamp("ns")), pa.timestamp("us", "UTC"), NOON.replace(tzinfo=dt.UTC)),
        (pa.array(["a"], pa.large_string()), pa.string(), "a"),
        (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
        (pa.array([[7]], pa.list_(pa.int32())), pa.list_(pa.int64()), [7]),
        (pa.array([{"a": 7}], pa.struct([("a", pa.int16())])), pa.struct([("a", pa.int32())]), {"a": 7}),
        (pa.array([None], pa.null()), pa.int32(), None),
    ],
)
def test_a_wider_type_has_the_same_value(
    destination: str, settings: Settings, column: pa.Array, kind: pa.DataType, value: object
) -> None:
    published(destination, settings, column)

    assert rows(destination, settings, kind) == [value]


def test_a_value_that_the_wider_type_cannot_have_is_refused_too(destination: str, settings: Settings) -> None:
    published(destination, settings, pa.array([2**53 + 1], pa.int64()))

    with pytest.raises(InvalidInputError, match="column 'x' is int64"):
        rows(destination, settings, pa.float64())


def test_unsigned_integers_fit_wider_signed_ones() -> None:
    assert fits(pa.uint8(), pa.int16())
    assert fits(pa.uint32(), pa.int64())
    assert not fits(pa.uint32(), pa.int32())
    assert not fits(pa.int8(), pa.uint64())
