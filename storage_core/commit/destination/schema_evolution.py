"""Whether the columns of a job fit those of a destination's data, and the columns after its publication.

A type widens if every old value has the same value in the new type. A destination's types never narrow while
data of the wider type are live, because a reader would have to cast them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lockgate.storage_core.commit.records.job_record import Column, JobSpec
from lockgate.storage_core.errors import ConflictError

_ALIASES: Final = {
    "byte": "tinyint", "int8": "tinyint", "short": "smallint", "int16": "smallint", "integer": "int",
    "int32": "int", "long": "bigint", "int64": "bigint", "real": "float", "float32": "float",
    "float64": "double", "date32": "date",
}  # fmt: skip
_WIDER: Final = {
    "tinyint": {"smallint", "int", "bigint", "double"},
    "smallint": {"int", "bigint", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
_WHOLE_DIGITS: Final = {"tinyint": 10, "smallint": 10, "int": 10, "bigint": 20}
"""Digits before the point with which Spark reads a file's whole numbers as a decimal."""
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def widens(old: str, new: str) -> bool:
    """Return whether a column may change from one type to another, as Spark or Arrow spell them."""
    old, new = (_ALIASES.get(kind.lower(), kind.lower()) for kind in (old, new))
    if old == new or new in _WIDER.get(old, ()):
        return True
    wide = _DECIMAL.fullmatch(new)
    if wide is None:
        return False
    whole, fraction = int(wide[1]) - int(wide[2]), int(wide[2])
    if old in _WHOLE_DIGITS:
        return whole >= _WHOLE_DIGITS[old]
    narrow = _DECIMAL.fullmatch(old)
    return narrow is not None and whole >= int(narrow[1]) - int(narrow[2]) and fraction >= int(narrow[2])


def refuse_unfit_columns(spec: JobSpec, current: Sequence[Column] | None, url: str) -> None:
    """Refuse, at set-up, a job whose columns do not fit those of data that stay at the destination.

    Args:
        spec: The job's specification.
        current: Columns of the destination's log, also dropped ones.
        url: URL of the destination.

    Raises:
        ConflictError: A column is new, missing or of another type; with `evolve_schema`, a type does not
            widen, or two names differ in case only. The message names each column.
    """
    if not _keeps_data(spec) or not current or not spec.columns:
        return
    if spec.evolve_schema:
        faults = _misfits(current, spec.columns, widens)
        remedy = "a type can only be widened, such as int to bigint; change the data, or rename the column"
    else:
        faults = _misfits(current, spec.columns, str.__eq__)
        faults += _differences(current, spec.columns)
        remedy = "change the data, or set evolve_schema"
    if faults:
        raise ConflictError(
            f"{url}: the columns do not fit: {'; '.join(faults[:10])}; nothing was changed; {remedy}"
        )


def refuse_overtaken_columns(spec: JobSpec, current: Sequence[Column] | None, url: str) -> None:
    """Refuse, in the turn, columns that no longer fit because another job has published since the set-up.

    Raises:
        ConflictError: A column has two types of which neither is wider, or two names differ in case only.
    """
    if not _keeps_data(spec) or not current or not spec.columns:
        return
    faults = _misfits(current, spec.columns, lambda old, new: widens(old, new) or widens(new, old))
    if faults:
        raise ConflictError(
            f"{url}: another job has published columns that do not fit: {'; '.join(faults[:10])}; nothing "
            "was published; change the data, and run the job again"
        )


def columns_after(spec: JobSpec, current: Sequence[Column] | None) -> tuple[Column, ...] | None:
    """Return the columns of the destination after a job: its own, each as wide as that of data that stay.

    Columns that only data that stay have are marked as dropped.
    """
    if spec.columns is None or not current or not _keeps_data(spec):
        return spec.columns
    old = {column.name: column for column in current}
    own = tuple(
        Column(column.name, old[column.name].type)
        if column.name in old and widens(column.type, old[column.name].type)
        else column
        for column in spec.columns
    )
    names = {column.name for column in own}
    return (
        *own,
        *(msgspec.structs.replace(column, dropped=True) for column in current if column.name not in names),
    )


def _keeps_data(spec: JobSpec) -> bool:
    """Return whether data of other jobs stay beside the job's own."""
    return spec.mode in {"append", "compact"} or spec.scope == "partitions"


def _misfits(old: Sequence[Column], new: Sequence[Column], fits: Callable[[str, str], bool]) -> list[str]:
    kinds = {column.name: column.type for column in old}
    lower = {name.lower(): name for name in kinds}
    faults = [
        f"{column.name} is {column.type}, not {kinds[column.name]}"
        for column in new
        if column.name in kinds and not fits(kinds[column.name], column.type)
    ]
    return faults + [
        f"{column.name} differs from {lower[column.name.lower()]} in case only"
        for column in new
        if column.name not in kinds and column.name.lower() in lower
    ]


def _differences(old: Sequence[Column], new: Sequence[Column]) -> list[str]:
    left = [column.name for column in old if not column.dropped]
    names = [column.name for column in new]
    return [f"{name} is new" for name in names if name not in left] + [
        f"{name} is missing" for name in left if name not in names
    ]
