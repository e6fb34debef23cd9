"""Great Expectations over one frame, pandas or Spark: what a suite is, and what it says of the rows.

Importing Great Expectations takes seconds and brings PySpark along: only the functions here do it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from lockgate.storage_core.errors import InvalidInputError, MissingPartError

Suite = Mapping[str, Any] | str | Path | Callable[[Any], Any]
"""`suite.to_json_dict()`, a file that holds it as JSON, or `(great_expectations) -> ExpectationSuite`."""


class Validation(TypedDict):
    """What a suite said of the rows; JSON, so that it can come from a child process."""

    passed: bool
    suite: str
    expectations: int
    failures: list[str]
    rows: int


def validate(frame: Any, suite: Suite, *, rows: int) -> Validation:
    """Validate a pandas or Spark frame.

    Args:
        frame: The rows.
        suite: What is expected of them.
        rows: How many they are; goes into the result.

    Raises:
        InvalidInputError: The suite is not readable, is empty, or names an expectation that does not exist.
        MissingPartError: Great Expectations is not installed.
    """
    gx = _great_expectations()
    expected = _as_suite(gx, suite)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    sources = context.data_sources
    is_pandas = type(frame).__module__.partition(".")[0] == "pandas"
    source = sources.add_pandas("staged") if is_pandas else sources.add_spark("staged")
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    result = batch.get_batch({"dataframe": frame}).validate(expected)
    return Validation(
        passed=bool(result.success),
        suite=str(expected.name),
        expectations=len(result.results),
        failures=[_failure(each) for each in result.results if not each.success],
        rows=rows,
    )


def _great_expectations() -> Any:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    try:
        import great_expectations  # noqa: PLC0415 - slow, see above
    except ImportError as error:
        raise MissingPartError(
            f"an audit needs Great Expectations ({error}): pip install 'lockgate[audit]'; no verdict"
        ) from error
    return great_expectations


def _as_suite(gx: Any, given: Suite) -> Any:
    if callable(given):
        suite, asked = given(gx), None
    else:
        described = _described(given)
        asked = described.get("expectations")
        if not isinstance(asked, list):
            raise InvalidInputError("the suite has no list `expectations`: give suite.to_json_dict()")
        suite = gx.ExpectationSuite(**{"name": "audit", **described})
    if not isinstance(suite, gx.ExpectationSuite):
        raise InvalidInputError(
            f"the suite's function returned {type(suite).__name__}, not an ExpectationSuite"
        )
    if asked is not None and len(suite.expectations) != len(asked):
        # Great Expectations leaves out what it cannot build and goes on: a gate must not.
        raise InvalidInputError(
            f"suite {suite.name!r}: {len(asked) - len(suite.expectations)} of {len(asked)} expectations are "
            "unknown or malformed; the log above names them; no verdict"
        )
    if not suite.expectations:
        raise InvalidInputError(f"suite {suite.name!r} expects nothing, so it would pass anything")
    return suite


def _described(given: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    try:
        described = dict(given) if isinstance(given, Mapping) else json.loads(Path(given).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"suite {str(given)[:200]!r} is no readable JSON file: {error}") from error
    if not isinstance(described, dict):
        raise InvalidInputError(f"suite {str(given)[:200]!r} holds no JSON object")
    return described


def _failure(result: Any) -> str:
    """Tell one failed expectation in a line."""
    config = result.expectation_config
    asked = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    found = dict(result.result or {})
    told = {
        name: found[name]
        for name in ("observed_value", "unexpected_count", "partial_unexpected_list")
        if name in found
    }
    if not told:
        told = {"raised": _exceptions(result.exception_info)}
    return f"{config.type}({json.dumps(asked, default=str)}): {json.dumps(told, default=str)[:400]}"


def _exceptions(info: Mapping[str, Any] | None) -> str:
    details = [info, *(info or {}).values()]
    messages = (each.get("exception_message") for each in details if isinstance(each, Mapping))
    return "; ".join(dict.fromkeys(str(message) for message in messages if message)) or "unknown"
