"""Partition columns of a file by the folders of its key: `day=2026-11-21/city=S%C3%A3o`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""Folder value of nulls and, as in Spark, of empty strings."""

_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")


def unescape(text: str) -> str:
    """Reverse the escaping of Hive's folder names; a `%` that starts no escape sequence is kept."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def partition_values(key: str) -> Mapping[str, str | None]:
    """Return the partition columns and values of a file's key, as text; `None` for a null."""
    pairs = (segment.partition("=") for segment in key.split("/")[:-1])
    return {
        unescape(column): None if text == NULL_PARTITION else unescape(text)
        for column, equals, text in pairs
        if equals and column
    }
