"""Answer a suite from the column statistics of pending sets, where tasks write files without staging them.

An expectation that statistics cannot answer exactly is refused by name before anything is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockgate.operators.audits.suites import Suite, as_suite
from lockgate.operators.audits.validation import Validation, validation
from lockgate.storage_core.commit.uploads.parquet_footer import NAMED_COLUMNS
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.tables.partitions import partition_values

if TYPE_CHECKING:
    from lockgate.storage_core.commit.records.pending_set import ColumnStatistics, PendingFile, PendingSet


class _CannotAnswerError(Exception):
    """The statistics do not have what an expectation asks for."""


@dataclass
class _Column:
    """One column over all files; None: not known."""

    nulls: int | None = 0
    lows: list[Any] | None = field(default_factory=list)
    highs: list[Any] | None = field(default_factory=list)


class JobStatistics:
    """Rows and column statistics of a job's chosen pending sets, added up."""

    def __init__(self, sets: Iterable[PendingSet]) -> None:
        self._files = [file for one in sets for file in one.files]
        self._columns: dict[str, _Column] = {}

    @property
    def rows(self) -> int:
        """Rows of all files."""
        counts = [file.rows for file in self._files]
        if None in counts:
            raise _CannotAnswerError(f"no row count of {self._files[counts.index(None)].path} is recorded")
        return sum(count or 0 for count in counts)

    @property
    def names(self) -> list[str]:
        """Names of the columns: those of the files, then those of the folders; a record sorts them."""
        found: dict[str, None] = {}
        for file in self._files:
            if file.rows and not file.statistics:
                raise _CannotAnswerError(f"no column statistics of {file.path} are recorded")
            if len(file.statistics) >= NAMED_COLUMNS:
                raise _CannotAnswerError(f"{file.path} has more than {NAMED_COLUMNS} columns")
            found.update(dict.fromkeys(file.statistics))
        found.update(dict.fromkeys(name for file in self._files for name in partition_values(file.path)))
        return list(found)

    def column(self, name: str) -> _Column:
        """Return a column's statistics.

        Raises:
            InvalidInputError: There is no such column.
        """
        if name not in self._columns:
            if name not in self.names:
                raise InvalidInputError(
                    f"column {name!r} does not exist in the pending files, which have "
                    f"{', '.join(self.names[:20])}; no verdict; correct the suite, and clear the audit task"
                )
            self._columns[name] = _added_up(name, self._files)
        return self._columns[name]


def validate_statistics(suite: Suite, sets: Sequence[PendingSet]) -> Validation:
    """Answer a suite from the statistics of pending sets, in Great Expectations' own JSON form.

    Raises:
        InvalidInputError: The suite is malformed, or statistics cannot answer one of its expectations.
    """
    expected = as_suite(suite)[1].to_json_dict()
    found = JobStatistics(sets)
    results, refused = [], []
    for each in expected["expectations"]:
        try:
            success, result = _answer(found, str(each["type"]), each["kwargs"])
        except _CannotAnswerError as error:
            refused.append(f"{each['type']}: {error}")
            continue
        config = {name: each.get(name) for name in ("type", "kwargs", "meta", "severity")}
        results.append(
            {
                "success": success,
                "expectation_config": config,
                "result": result,
                "meta": {},
                "exception_info": {"raised_exception": False},
            }
        )
    if refused:
        raise InvalidInputError(
            f"suite {expected['name']!r}: column statistics cannot answer {len(refused)} expectations: "
            f"{'; '.join(refused[:5])}; no verdict; take them out of the suite, or stage the data "
            "(SparkWriteOperator's via='staged') and audit the rows (engine `pandas` or `spark`)"
        )
    met = sum(bool(each["success"]) for each in results)
    document = {
        "success": met == len(results),
        "results": results,
        "suite_name": expected["name"],
        "suite_parameters": {},
        "statistics": {
            "evaluated_expectations": len(results),
            "successful_expectations": met,
            "unsuccessful_expectations": len(results) - met,
            "success_percent": 100.0 * met / len(results),
        },
        "meta": {"engine": "statistics"},
    }
    try:
        rows = found.rows
    except _CannotAnswerError:
        rows = 0
    return validation(document, rows=rows)


def unanswerable(suite: Suite, partition_by: Sequence[str] = ()) -> list[str]:
    """Return the expectations that no statistics of Parquet files can answer, each with the reason.

    Raises:
        InvalidInputError: The suite is malformed.
    """
    found = []
    for each in as_suite(suite)[1].to_json_dict()["expectations"]:
        kind, kwargs = str(each["type"]), each["kwargs"]
        try:
            _check(kind, kwargs)
            if kind in _OF_BOUNDS and kwargs["column"] in partition_by:
                raise _CannotAnswerError("the type of a partition column is not recorded")
        except _CannotAnswerError as error:
            found.append(f"{kind}: {error}")
    return found


Answer = tuple[bool, dict[str, Any]]


def _check(kind: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse an expectation that needs the rows."""
    if kwargs.get("row_condition") is not None:
        raise _CannotAnswerError("row_condition chooses rows")
    if kind not in ANSWERS:
        raise _CannotAnswerError("it needs the rows, or the order of the columns")
    if kind == "expect_column_values_to_be_between" and float(kwargs.get("mostly", 1)) != 1:
        raise _CannotAnswerError("mostly below 1 needs the rows")
    if kwargs.get("column_index") is not None:
        raise _CannotAnswerError("column_index needs the order of all columns")


def _answer(found: JobStatistics, kind: str, kwargs: Mapping[str, Any]) -> Answer:
    _check(kind, kwargs)
    return ANSWERS[kind](found, kwargs)


def _row_count(found: JobStatistics, kwargs: Mapping[str, Any]) -> Answer:
    exact = kwargs.get("value")
    is_met = found.rows == exact if exact is not None else _is_between(found.rows, kwargs)
    return is_met, {"observed_value": found.rows}


def _not_null(found: JobStatistics, kwargs: Mapping[str, Any]) -> Answer:
    rows, nulls = found.rows, found.column(kwargs["column"]).nulls
    if nulls is None:
        raise _CannotAnswerError(f"no null count of column {kwargs['column']!r} is recorded in every file")
    share = (rows - nulls) / rows if rows else 1.0
    return share >= float(kwargs.get("mostly", 1)), {
        "element_count": rows,
        "unexpected_count": nulls,
        "unexpected_percent": 100.0 * (1 - share),
        "partial_unexpected_list": [None] * min(nulls, 20),
    }


def _bound(found: JobStatistics, kwargs: Mapping[str, Any], *, lowest: bool) -> Answer:
    low, high = _bounds(found, kwargs["column"])
    observed = low if lowest else high
    return observed is not None and _is_between(observed, kwargs), {"observed_value": observed}


def _values_between(found: JobStatistics, kwargs: Mapping[str, Any]) -> Answer:
    low, high = _bounds(found, kwargs["column"])
    outside = [value for value in (low, high) if value is not None and not _is_between(value, kwargs)]
    return not outside, {"observed_value": f"{low} to {high}", "partial_unexpected_list": outside}


def _exists(found: JobStatistics, kwargs: Mapping[str, Any]) -> Answer:
    return kwargs["column"] in found.names, {}


def _column_set(found: JobStatistics, kwargs: Mapping[str, Any]) -> Answer:
    wanted, names = set(kwargs["column_set"]), set(found.names)
    is_met = wanted == names if kwargs.get("exact_match", True) else wanted <= names
    return is_met, {"observed_value": sorted(names)}


def _column_count(found: JobStatistics, kwargs: Mapping[str, Any]) -> Answer:
    count, exact = len(found.names), kwargs.get("value")
    return count == exact if exact is not None else _is_between(count, kwargs), {"observed_value": count}


ANSWERS: Final[Mapping[str, Callable[[JobStatistics, Mapping[str, Any]], Answer]]] = {
    "expect_table_row_count_to_equal": _row_count,
    "expect_table_row_count_to_be_between": _row_count,
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_min_to_be_between": partial(_bound, lowest=True),
    "expect_column_max_to_be_between": partial(_bound, lowest=False),
    "expect_column_values_to_be_between": _values_between,
    "expect_column_to_exist": _exists,
    "expect_table_columns_to_match_set": _column_set,
    "expect_table_column_count_to_equal": _column_count,
    "expect_table_column_count_to_be_between": _column_count,
}
"""Expectations that the statistics answer exactly."""
_OF_BOUNDS: Final = frozenset(
    {
        "expect_column_min_to_be_between",
        "expect_column_max_to_be_between",
        "expect_column_values_to_be_between",
    }
)


def _bounds(found: JobStatistics, name: str) -> tuple[Any, Any]:
    column = found.column(name)
    if column.lows is None or column.highs is None:
        raise _CannotAnswerError(f"no minimum and maximum of column {name!r} are recorded in every file")
    try:
        return min(column.lows, default=None), max(column.highs, default=None)
    except TypeError:
        raise _CannotAnswerError(f"column {name!r} has different types in different files") from None


def _is_between(value: Any, kwargs: Mapping[str, Any]) -> bool:
    low, high = (_like(value, kwargs.get(name)) for name in ("min_value", "max_value"))
    above = low is None or (value > low if kwargs.get("strict_min") else value >= low)
    return above and (high is None or (value < high if kwargs.get("strict_max") else value <= high))


def _like(value: Any, bound: Any) -> Any:
    """Return a bound of a suite as a value of the column's type."""
    if bound is None:
        return None
    try:
        if isinstance(value, Decimal):
            bound = Decimal(str(bound))
        elif isinstance(value, date) and isinstance(bound, str):
            bound = type(value).fromisoformat(bound)
        value < bound  # noqa: B015 - raises unless they can be compared
    except (TypeError, ValueError, ArithmeticError):
        raise _CannotAnswerError(
            f"{bound!r} cannot be compared with values such as {value!r} of type {type(value).__name__}"
        ) from None
    return bound


def _added_up(name: str, files: Sequence[PendingFile]) -> _Column:
    total = _Column()
    for file in files:
        folders = partition_values(file.path)
        if name in folders:
            # Their type is not recorded, and text does not order numbers.
            total.lows = total.highs = None
            nulls = None if file.rows is None else file.rows * (folders[name] is None)
        elif name not in file.statistics:
            nulls = file.rows  # another schema: the column reads as null
        else:
            nulls = file.statistics[name].nulls
            _add_bounds(total, file.statistics[name], file.rows)
        total.nulls = None if total.nulls is None or nulls is None else total.nulls + nulls
    return total


def _add_bounds(total: _Column, recorded: ColumnStatistics, rows: int | None) -> None:
    if recorded.nulls is not None and recorded.nulls == rows:
        return  # no values, no bounds
    low, high = (_value(recorded.type, text) for text in (recorded.minimum, recorded.maximum))
    if total.lows is None or total.highs is None or low is None or high is None:
        total.lows = total.highs = None
        return
    total.lows.append(low)
    total.highs.append(high)


def _value(kind: str, text: str | None) -> Any:
    """Return a recorded bound as a value of its column's type; None if that is not known."""
    name = kind.partition("[")[0].partition("(")[0]
    parse = next((parse for start, parse in PARSERS.items() if name.startswith(start)), None)
    if text is None or parse is None:
        return None
    try:
        value = parse(text)
    except (ValueError, ArithmeticError):
        return None
    return None if value != value else value  # noqa: PLR0124 - NaN has no order


PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": int,
    "uint": int,
    "float": float,
    "double": float,
    "halffloat": float,
    "decimal": Decimal,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "string": str,
    "large_string": str,
}
"""How to read a bound, by the beginning of the name of its Arrow type."""
