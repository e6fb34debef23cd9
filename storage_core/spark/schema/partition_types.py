"""Types of partition columns: a folder's text as a typed value, and a guess where the log knows no type."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from lockgate.storage_core.errors import InvalidInputError

_GUESSES: Final = (
    ("int", pa.int32()),
    ("bigint", pa.int64()),
    ("double", pa.float64()),
    ("date", pa.date32()),
)


def folder_value(text: str | None, kind: pa.DataType, time_zone: str = "UTC") -> pa.Scalar:
    """Return a partition value as a scalar of its column's type.

    Args:
        text: From the folder's name; None for a null.
        kind: The column's Arrow type.
        time_zone: In which a timestamp in a folder's name is meant.

    Raises:
        InvalidInputError: The text is no value of that type.
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
            f"partition value {text[:80]!r} is no {kind}; read with a schema in which that column is a string"
        ) from error


def guessed_type(texts: Iterable[str | None]) -> str:
    """Return the first of int, bigint, double, date and string that all values have, as Spark guesses it."""
    values = [text for text in texts if text is not None]
    for name, kind in _GUESSES if values else ():
        if all(_is_a(text, kind) for text in values):
            return name
    return "string"


def _is_a(text: str, kind: pa.DataType) -> bool:
    try:
        folder_value(text, kind)
    except InvalidInputError:
        return False
    return True
