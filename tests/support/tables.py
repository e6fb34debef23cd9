"""Readers of tables, and jobs that write Parquet."""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.tables.partitions import partition_values
from tests.support.commit.destination import World
from tests.support.table_engines import ask

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

Rows = list[tuple[Any, ...]]


class Reader(Protocol):
    """Returns the rows of a table's newest version, or that of a turn."""

    def __call__(self, world: World, columns: Iterable[str], turn: int | None = None) -> Rows: ...


@cache
def duck() -> duckdb.DuckDBPyConnection:
    """Return a connection with the extensions for tables."""
    connection = duckdb.connect()
    load_extensions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def load_extensions(connection: duckdb.DuckDBPyConnection) -> None:
    """Load the extensions that a connection would fetch."""
    for name in ("httpfs", "avro", "delta", "iceberg"):
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        if spec is None or spec.origin is None:
            raise AssertionError(name)
        (file,) = Path(spec.origin).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")


def publish(world: World, name: str, files: Mapping[str, pa.Table], **options: Any) -> Receipt:
    """Publish Parquet files by a job with a task a file."""
    with world.open_job(name, **options) as job:
        for number, (path, table) in enumerate(files.items()):
            write(job, f"task-{number}", path, table)
        return job.commit()


def write(job: Job, task: str, path: str, table: pa.Table) -> None:
    with job.attempt(task) as attempt, attempt.open(path) as file:
        pq.write_table(table, file)


def by_log(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    """Return the rows of the live files, with the values of the folders as text."""
    found: Rows = []
    for key in world.manifest(turn).files:
        rows = pq.ParquetFile(f"{world.url}/{key}").read().to_pylist()
        found += _rows(({**row, **partition_values(key)} for row in rows), columns)
    return found


def by_listing(world: World, columns: Iterable[str], folders: Iterable[str]) -> Rows:
    """Return the rows that a reader of plain Parquet finds by a listing, with the folders as text."""
    schema = pa.schema([(name, pa.string()) for name in folders])
    found = ds.dataset(world.url, format="parquet", partitioning=ds.HivePartitioning(schema))
    return _rows(found.to_table().to_pylist(), columns)


def by_delta_rs(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    found = DeltaTable(world.url, version=_version(turn)).to_pyarrow_table()
    return _rows(found.to_pylist(), columns)


def by_duckdb_delta(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    at = "" if turn is None else f", version => {turn - 1}"
    table = duck().execute(f"FROM delta_scan('{world.url}'{at})").to_arrow_table()
    return _rows(table.to_pylist(), columns)


def by_polars_delta(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    return _rows(pl.read_delta(world.url, version=_version(turn)).to_arrow().to_pylist(), columns)


def by_spark_delta(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    at = {} if turn is None else {"versionAsOf": str(turn - 1)}
    return _rows(ask("read", "delta", world.url, at), columns)


def _version(turn: int | None) -> int | None:
    return None if turn is None else turn - 1


def _rows(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> Rows:
    names = list(columns)
    return [tuple(row.get(name) for name in names) for row in rows]


def in_order(rows: Rows) -> list[str]:
    """Return rows in a form and an order in which those of all readers can be compared."""
    return sorted(repr(tuple(map(_plain, row))) for row in rows)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            parts = [_plain(part) for part in value]
            return tuple(parts) if isinstance(value, tuple) else parts
        case dt.datetime():
            return value.replace(tzinfo=None).isoformat()
        case bytearray() | memoryview():
            return bytes(value)
        case Decimal():
            return str(value)
        case _:
            return value


def by_pyiceberg(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    table = StaticTable.from_metadata(f"{world.url}/_iceberg/metadata/{newest(world)}")
    return _rows(table.scan(snapshot_id=turn).to_arrow().to_pylist(), columns)


def by_duckdb_iceberg(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    at = "" if turn is None else f", snapshot_from_id => {turn}"
    table = duck().execute(f"FROM iceberg_scan('{world.url}/_iceberg'{at})").to_arrow_table()
    return _rows(table.to_pylist(), columns)


def by_polars_iceberg(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other one is a package of its own
        found = pl.scan_iceberg(f"{world.url}/_iceberg/metadata/{newest(world)}", snapshot_id=turn).collect()
    return _rows(found.to_arrow().to_pylist(), columns)


def by_spark_iceberg(world: World, columns: Iterable[str], turn: int | None = None) -> Rows:
    at = {} if turn is None else {"versionAsOf": str(turn)}
    return _rows(ask("read", "iceberg", f"{world.url}/_iceberg", at), columns)


def newest(world: World) -> str:
    """Return the name of the metadata file that the hint names."""
    hint = Path(world.url, "_iceberg/metadata/version-hint.text").read_text()
    return f"v{hint}.metadata.json"


def _named(readers: Mapping[str, Reader], *marks: pytest.MarkDecorator) -> list[ParameterSet]:
    return [pytest.param(read, id=name, marks=marks) for name, read in readers.items()]


READERS: dict[str, Reader] = {
    "delta-rs": by_delta_rs,
    "DuckDB": by_duckdb_delta,
    "Polars": by_polars_delta,
    "pyiceberg": by_pyiceberg,
    "DuckDB iceberg": by_duckdb_iceberg,
    "Polars iceberg": by_polars_iceberg,
}
ENGINES: dict[str, Reader] = {"Spark delta": by_spark_delta, "Spark iceberg": by_spark_iceberg}
"""Spark with Delta's and Iceberg's own jars."""
of_engines = (pytest.mark.soak, pytest.mark.requires("table-engines"))
every_reader = pytest.mark.parametrize("read", [*_named(READERS), *_named(ENGINES, *of_engines)])
