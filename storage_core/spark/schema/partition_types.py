"""Convert partition values from folder names to typed values, and infer types that the log does not have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from lockgate.storage_core.errors import InvalidInputError

_INFERRED: Final = (
    ("int", pa.int32()),
    ("bigint", pa.int64()),
    ("double", pa.float64()),
    ("date", pa.date32()),
)


def folder_value(text: str | None, kind: pa.DataType, time_zone: str = "UTC") -> pa.Scalar:
    """Return a partition value as a scalar of its column's type.

    Args:
        text: Value from the folder's name; None for a null.
        kind: Arrow type of the column.
        time_zone: Time zone of a timestamp in a folder's name.

    Raises:
        InvalidInputError: The text is not a value of that type.
    """
    if text is None:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            moment = dt.datetime.fromisoformat(text)
            return pa.scalar(moment.replace(tzinfo=ZoneInfo(time_zone)) if kind.tz else moment, kind)
        if pa.types.is_floating(kind):
            return pa.scalar(float(text), kind)
        return pa.scalar(text).cast(kind)
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"partition value {text[:80]!r} is not a {kind}; read with a schema that has it as a string"
        ) from error


def inferred_type(texts: Iterable[str | None]) -> str:
    """Return the first of int, bigint, double, date and string that fits all values, as Spark infers it."""
    values = [text for text in texts if text is not None]
    for name, kind in _INFERRED if values else ():
        if all(_has_type(text, kind) for text in values):
            return name
    return "string"


def _has_type(text: str, kind: pa.DataType) -> bool:
    try:
        folder_value(text, kind)
    except InvalidInputError:
        return False
    return True
