"""Refuse the parts of a Great Expectations suite that are code or read files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from lockgate.storage_core.errors import InvalidInputError

_CODE: Final = frozenset({"row_condition", "condition_parser"})
"""Arguments that pandas evaluates as a query, which can call any function."""

_EXPECTATION: Final = re.compile(r"expect_(column|table|multicolumn|compound|select)_[a-z_]+")
"""Expectations on columns and rows, unlike `unexpected_rows_expectation`, which is a query."""

_READS_URLS: Final = "expect_column_values_to_match_json_schema"


def check_suite(suite: object) -> None:
    """Check a suite that comes from a form; without one, an audit compares sizes and counts.

    Raises:
        InvalidInputError: It is no JSON object, or contains a query or a JSON schema, which can name a file.
    """
    if not isinstance(suite, dict):
        raise _refusal(f"a suite in a form must be suite.to_json_dict(), not {type(suite).__name__}")
    for described in _dicts(suite):
        if code := _CODE & described.keys():
            raise _refusal(f"{min(code)} is not allowed in a form: it is evaluated as code")
        kind = described.get("type", described.get("expectation_type"))
        if "kwargs" in described and (
            not isinstance(kind, str) or not _EXPECTATION.fullmatch(kind) or kind == _READS_URLS
        ):
            raise _refusal(f"expectation {kind!r} is not allowed in a form")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _dicts(each)


def _refusal(what: str) -> InvalidInputError:
    return InvalidInputError(f"suite: {what}; nothing was read; use it in a DAG of your own")
