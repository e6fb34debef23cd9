"""Refuse what old versions of Spark, or Spark on request, wrote in another calendar than today's.

They wrote dates before 15 October 1582 in the Julian calendar, and timestamps before 1900 with the time zones
of old Java versions. Spark's own reader converts both.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lockgate.storage_core.errors import InvalidInputError

_VERSION: Final = b"org.apache.spark.version"
_OLD_VERSIONS: Final = (b"1.", b"2.", b"3.0.")
_LEGACY: Final = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})
_FIRST_DATE: Final = dt.date(1582, 10, 15)
_FIRST_TIMESTAMP: Final = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)


def has_julian_dates(metadata: Mapping[bytes, bytes]) -> bool:
    """Return whether the metadata of a file say that it may have dates of the old calendar."""
    return not _LEGACY.isdisjoint(metadata) or metadata.get(_VERSION, b"").startswith(_OLD_VERSIONS)


def check_gregorian(batch: pa.RecordBatch, where: str) -> None:
    """Check that the old calendar and today's are the same for every value of a batch.

    Raises:
        InvalidInputError: They are not.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for values in _leaves(column):
            first = _first(values.type)
            if first is not None and pc.any(pc.less(values, first)).as_py():
                raise InvalidInputError(
                    f"{where}: column {name!r} has a value before {first.as_py()}, written in the "
                    "Julian calendar, which this reader does not convert; nothing was read; read it with "
                    "lockgate.spark.read(…, by_spark=True), or write the data again, with "
                    "datetimeRebaseModeInWrite=CORRECTED"
                )


def _first(kind: pa.DataType) -> pa.Scalar | None:
    if pa.types.is_date(kind):
        return pa.scalar(_FIRST_DATE, kind)
    if pa.types.is_timestamp(kind):
        moment = _FIRST_TIMESTAMP if kind.tz else _FIRST_TIMESTAMP.replace(tzinfo=None)
        return pa.scalar(moment, kind)
    return None


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the values of a column, or those within its lists, maps and structs."""
    if pa.types.is_map(column.type):
        nested = [column.keys, column.items]
    elif pa.types.is_struct(column.type):
        nested = column.flatten()
    elif pa.types.is_list(column.type):
        nested = [column.flatten()]
    else:
        yield column
        return
    for each in nested:
        yield from _leaves(each)
