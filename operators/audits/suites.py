"""Validate a pandas or Spark frame with a Great Expectations suite.

Great Expectations takes seconds to import and imports PySpark, so only the functions here import it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockgate.operators.audits.validation import Validation, validation
from lockgate.storage_core.errors import InvalidInputError, LockgateError, MissingPartError

Suite = Mapping[str, Any] | str | Path | Callable[[Any], Any]
"""`suite.to_json_dict()`, a file that holds it as JSON, or `(great_expectations) -> ExpectationSuite`."""


def validate(frame: Any, suite: Suite, *, rows: int) -> Validation:
    """Validate a pandas or Spark frame.

    Args:
        frame: The rows.
        suite: Expectations on them.
        rows: Number of rows, for the result.

    Raises:
        InvalidInputError: The suite cannot be read, is empty, names an unknown expectation or column, or an
            expectation raised instead of judging the rows. It says nothing about the rows: correct the suite.
        MissingPartError: Great Expectations is not installed.
    """
    gx, expected = as_suite(suite)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    sources = context.data_sources
    is_pandas = type(frame).__module__.partition(".")[0] == "pandas"
    source = sources.add_pandas("staged") if is_pandas else sources.add_spark("staged")
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    with _fault_of_the_suite(f"suite {expected.name!r} cannot be evaluated"):
        result = batch.get_batch({"dataframe": frame}).validate(expected)
    _refuse_raised(str(expected.name), result.results)
    return validation(result.to_json_dict(), rows=rows)


@contextmanager
def _fault_of_the_suite(what: str) -> Iterator[None]:
    """Raise `InvalidInputError` for an error that the same suite raises again; others stay unchanged."""
    try:
        yield
    except (LockgateError, MemoryError, OSError):
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}:
            raise  # Spark failed; a retry may succeed
        raise InvalidInputError(
            f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:400]}; no verdict; correct "
            "the suite, and clear the audit task: the data need not be written again"
        ) from error


def _refuse_raised(suite: str, results: Iterable[Any]) -> None:
    raised = [_failure(each) for each in results if _has_raised(each.exception_info)]
    if raised:
        raise InvalidInputError(
            f"suite {suite!r}: {len(raised)} expectations raised instead of judging the rows: "
            f"{'; '.join(raised[:3])}; no verdict; correct the suite, and clear the audit task: the data "
            "need not be written again"
        )


def _has_raised(info: Mapping[str, Any] | None) -> bool:
    details = [info, *(info or {}).values()]
    return any(isinstance(each, Mapping) and each.get("raised_exception") is True for each in details)


def _great_expectations() -> Any:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    try:
        import great_expectations
    except ImportError as error:
        raise MissingPartError(
            f"an audit needs Great Expectations ({error}): pip install 'lockgate[audit]'; no verdict"
        ) from error
    return great_expectations


def as_suite(given: Suite) -> tuple[Any, Any]:
    """Return Great Expectations, and the suite.

    Raises:
        InvalidInputError: The suite cannot be read, is empty, or is not what this version understands.
        MissingPartError: Great Expectations is not installed.
    """
    gx = _great_expectations()
    if callable(given):
        with _fault_of_the_suite("the suite's function raised"):
            suite, listed = given(gx), None
    else:
        described = _described(given)
        listed = described.get("expectations")
        if not isinstance(listed, list):
            raise InvalidInputError(
                f"suite {str(described)[:120]} has no list `expectations`; no verdict; pass "
                "suite.to_json_dict(), or nothing to check only sizes and counts"
            )
        with _fault_of_the_suite("the suite is malformed"):
            suite = gx.ExpectationSuite(**{"name": "audit", **described})
    if not isinstance(suite, gx.ExpectationSuite):
        raise InvalidInputError(
            f"the suite's function returned {type(suite).__name__}, not an ExpectationSuite"
        )
    if listed is not None and len(suite.expectations) != len(listed):
        # Great Expectations skips expectations that it cannot build; an audit must not pass without them.
        raise InvalidInputError(
            f"suite {suite.name!r}: {len(listed) - len(suite.expectations)} of {len(listed)} expectations "
            "are unknown or malformed; the log above names them; no verdict"
        )
    if not suite.expectations:
        raise InvalidInputError(f"suite {suite.name!r} has no expectations, so any data would pass")
    return gx, suite


def _described(given: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    try:
        described = dict(given) if isinstance(given, Mapping) else json.loads(Path(given).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"suite {str(given)[:200]!r} is not a readable JSON file: {error}") from error
    if not isinstance(described, dict):
        raise InvalidInputError(f"suite {str(given)[:200]!r} is not a JSON object")
    return described


def _failure(result: Any) -> str:
    """Return an expectation that raised as a line."""
    config = result.expectation_config
    arguments = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    raised = json.dumps({"raised": _exceptions(result.exception_info)}, default=str)
    return f"{config.type}({json.dumps(arguments, default=str)}): {raised[:400]}"


def _exceptions(info: Mapping[str, Any] | None) -> str:
    details = [info, *(info or {}).values()]
    messages = (each.get("exception_message") for each in details if isinstance(each, Mapping))
    return "; ".join(dict.fromkeys(str(message) for message in messages if message)) or "unknown"
