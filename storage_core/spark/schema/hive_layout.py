"""Hive's partition layout: convert partition values to folders, `day=2026-11-21/city=S%C3%A3o`, and back.

Folder names are exactly those that Spark writes, so that every reader of Spark's layout finds the columns.
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.tables.partitions import NULL_PARTITION

_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_INFERRED: Final = (
    ("int", pa.int32()),
    ("bigint", pa.int64()),
    ("double", pa.float64()),
    ("date", pa.date32()),
)


def escape(text: str) -> str:
    """Replace characters that folder names cannot have by `%` and two hexadecimal digits, as Hive does."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def folder_text(value: object, *, ansi: bool = True) -> str | None:
    """Return a partition value as text, as Spark casts it to a string; None for null or an empty string.

    Args:
        value: Python value from Arrow; a timestamp has the session's time zone, or none.
        ansi: `spark.sql.ansi.enabled`: small decimals have no exponent.
    """
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            return _timestamp_text(value)
        case Decimal():
            return f"{value:f}" if ansi else str(value)
        case _:
            return str(value)


def _timestamp_text(value: dt.datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return text.rstrip("0").rstrip(".") if "." in text else text


def partition_folder(columns: Sequence[str], values: Sequence[object], *, ansi: bool = True) -> str:
    """Return the folder of the rows with these partition values: `a=1/b=x`.

    Args:
        columns: Partition columns.
        values: Their values; see `folder_text`.
        ansi: See `folder_text`.

    Raises:
        InvalidInputError: A value cannot be a file name that reads back the same.
    """
    texts = (folder_text(value, ansi=ansi) for value in values)
    return "/".join(_segment(column, text) for column, text in zip(columns, texts, strict=True))


def _segment(column: str, text: str | None) -> str:
    if text is not None and (
        unicodedata.normalize("NFC", text) != text
        or any(unicodedata.category(c) in {"Cc", "Cs"} and not _ESCAPED.match(c) for c in text)
    ):
        raise InvalidInputError(
            f"partition column {column!r}: the value {text[:80]!r} cannot be a folder's name; "
            "nothing of this task was kept; partition by another column, or convert it to Unicode's NFC form"
        )
    return f"{escape(column)}={NULL_PARTITION if text is None else escape(text)}"


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
