"""Check that a listing, the log, `_SUCCESS`, two Spark readers and the source agree."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from examples.flights.data.flights import Counts
from examples.flights.steps import DemoFailedError
from lockgate.operators.spark_process.process import LineLog, SparkChild, SparkWork
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Checked:
    """Values on which all records agree."""

    turn: int
    files: int
    rows: int
    size: int


def visible_files(store: Store) -> dict[str, int]:
    """Return key and size of every file that a listing reader sees."""
    return {info.key: info.size for page in store.pages() for info in page if not layout.is_hidden(info.key)}


def open_uploads(store: Store) -> int:
    """Return how many uploads are open."""
    return sum(len(page) for page in store.upload_pages())


def check_records(store: Store) -> Checked:
    """Compare the log and `_SUCCESS` with a listing: keys, sizes, and rows from the files' footers.

    Raises:
        DemoFailedError: They differ, or an upload is still open.
    """
    listed = visible_files(store)
    rows = {key: _rows(store.get(key)) for key in listed}
    manifest = read_manifest(store.url)
    logged = {key: (file.size, file.rows) for key, file in manifest.files.items()}
    _same("the log and a listing", logged, {key: (size, rows[key]) for key, size in listed.items()})
    success = json.loads(store.get(layout.SUCCESS))
    recorded = (*(success[name] for name in ("turn", "files", "rows", "size")), sorted(success["filenames"]))
    found = (manifest.turn, len(listed), sum(rows.values()), sum(listed.values()), sorted(listed))
    _same("_SUCCESS and a listing", recorded, found)
    _same("open uploads", open_uploads(store), 0)
    return Checked(manifest.turn, len(listed), sum(rows.values()), sum(listed.values()))


def check_readers(store: Store, source: Counts, copy: Path, log: LineLog) -> None:
    """Compare the row counts of a reader of the log and of Spark's own Parquet reader with the source.

    Args:
        store: Store of the destination.
        source: Row counts of the source, by the values of some columns.
        copy: Folder for a copy of the visible files, if the destination is not on a disk.
        log: Log for Spark's output.

    Raises:
        DemoFailedError: They differ.
    """
    folder = _folder_of(store) or _download(store, copy)
    arguments = {"destination": store.url, "folder": folder, "columns": list(source)}
    counts = SparkChild(log).run(
        SparkWork(run="examples.flights.verify:count_by", arguments=arguments, master="local[2]")
    )
    for reader, columns in counts.items():
        for column, rows in source.items():
            _same(f"{reader} and the source, by {column}", columns[column], dict(rows))


def count_by(
    spark: SparkSession, *, destination: str, folder: str, columns: Sequence[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """Count rows by the values of each column, with both readers; runs in the Spark child."""
    from lockgate.storage_core.spark.data_source import read  # noqa: PLC0415 - imports PySpark

    def counts(frame: DataFrame) -> dict[str, dict[str, int]]:
        return {
            column: {str(row[column]): int(row["count"]) for row in frame.groupBy(column).count().collect()}
            for column in columns
        }

    return {
        "the reader that follows the log": counts(read(spark, destination)),
        "Spark's own Parquet reader": counts(spark.read.parquet(folder)),
    }


def counts_line(counts: Counts) -> str:
    """Return the row counts by each column as a line."""
    return "; ".join(
        f"by {column} "
        + " ".join(f"{value}:{count:,}" for value, count in sorted(rows.items(), key=_in_order))
        for column, rows in counts.items()
    )


def _in_order(item: tuple[str, int]) -> tuple[int, str]:
    return len(item[0]) if item[0].isdigit() else 0, item[0]


def _folder_of(store: Store) -> str | None:
    """Return the URI of a destination on a disk; Lockgate's URLs, unlike URIs, escape nothing."""
    scheme, _, path = store.url.partition("://")
    return Path(path).as_uri() if scheme == "file" else None


def _rows(data: bytes) -> int:
    return int(pq.ParquetFile(io.BytesIO(data)).metadata.num_rows)


def _download(store: Store, folder: Path) -> str:
    for key in visible_files(store):
        target = folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.get(key))
    return folder.as_uri()


def _same(what: str, left: Any, right: Any) -> None:
    if left != right:
        raise DemoFailedError(f"{what} differ: {str(left)[:600]} against {str(right)[:600]}")
