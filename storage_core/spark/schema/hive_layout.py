"""Hive's partition layout: convert partition values to folders, `day=2026-11-21/city=S%C3%A3o`, and back.

Folder names are exactly those that Spark writes, so that every reader of Spark's layout finds the columns.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from lockgate.storage_core.errors import InvalidInputError

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""Folder value of nulls and, as in Spark, of empty strings."""

_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")


def escape(text: str) -> str:
    """Replace characters that folder names cannot have by `%` and two hexadecimal digits, as Hive does."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescape(text: str) -> str:
    """Reverse `escape`; a `%` that starts no escape sequence is kept."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def value_text(value: object) -> str | None:
    """Return a partition value as text, like Spark's cast to string; `None` for null or an empty string.

    Args:
        value: Python value from Arrow; a timestamp has the session's time zone, or none.
    """
    match value:
        case None | "":
            text = None
        case bool():
            text = "true" if value else "false"
        case float():
            text = _double_text(value)
        case datetime():
            text = _timestamp_text(value)
        case Decimal():
            text = f"{value:f}"
        case _:
            text = str(value)
    return text


def _double_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # Java uses scientific notation for smaller exponents than Python.
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{Decimal(repr(value)):f}" if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = int(exponent) + len(digits) - 1
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{power}"


def _timestamp_text(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return text.rstrip("0").rstrip(".") if "." in text else text


def partition_folder(columns: Sequence[str], values: Sequence[object]) -> str:
    """Return the folder of the rows with these partition values: `a=1/b=x`.

    Raises:
        InvalidInputError: A value cannot be a file name that reads back the same.
    """
    return "/".join(map(_segment, columns, values))


def _segment(column: str, value: object) -> str:
    text = value_text(value)
    if text is not None and (
        unicodedata.normalize("NFC", text) != text
        or any(unicodedata.category(c) in {"Cc", "Cs"} and not _ESCAPED.match(c) for c in text)
    ):
        raise InvalidInputError(
            f"partition column {column!r}: the value {text[:80]!r} cannot be a folder's name; "
            "nothing of this task was kept; partition by another column, or convert it to Unicode's NFC form"
        )
    return f"{escape(column)}={NULL_PARTITION if text is None else escape(text)}"


def partition_values(key: str) -> Mapping[str, str | None]:
    """Return the partition columns and values of a file's key, as text; `None` for a null."""
    pairs = (segment.partition("=") for segment in key.split("/")[:-1])
    return {
        unescape(column): None if text == NULL_PARTITION else unescape(text)
        for column, equals, text in pairs
        if equals and column
    }
