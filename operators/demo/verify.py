"""Does everyone see the same: a listing, the log, `_SUCCESS`, two readers of Spark, and the source?"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from operators.demo.failed import DemoFailedError
from operators.spark_process import LineLog, SparkChild, SparkWork
from storage_core.commit import layout, read_manifest
from storage_core.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Checked:
    """What all agreed on."""

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
    """Compare the log and `_SUCCESS` with what a listing finds: keys, sizes, and rows by the files' footers.

    Raises:
        DemoFailedError: They differ, or an upload is still open.
    """
    listed = visible_files(store)
    rows = {key: _rows(store.get(key)) for key in listed}
    manifest = read_manifest(store.url)
    logged = {key: (file.size, file.rows) for key, file in manifest.files.items()}
    _same("the log and a listing", logged, {key: (size, rows[key]) for key, size in listed.items()})
    success = json.loads(store.get(layout.SUCCESS))
    told = (success["turn"], success["files"], success["rows"], success["size"], sorted(success["filenames"]))
    found = (manifest.turn, len(listed), sum(rows.values()), sum(listed.values()), sorted(listed))
    _same("_SUCCESS and a listing", told, found)
    _same("open uploads", open_uploads(store), 0)
    return Checked(manifest.turn, len(listed), sum(rows.values()), sum(listed.values()))


def check_readers(store: Store, source: Mapping[int, int], copy: Path, log: LineLog) -> None:
    """Compare rows a month, read through the log and by Spark's own Parquet reader, with the source.

    Args:
        store: At the destination.
        source: Rows a month.
        copy: Where to put the visible files for Spark's own reader, if the destination is not a disk.
        log: Hears what Spark prints.

    Raises:
        DemoFailedError: They differ.
    """
    folder = _folder_of(store) or _download(store, copy)
    arguments = {"destination": store.url, "folder": folder}
    counts = SparkChild(log).run(
        SparkWork(run="operators.demo.verify:count_months", arguments=arguments, master="local[2]")
    )
    for reader, months in counts.items():
        _same(f"{reader} and the source, by month", {int(m): n for m, n in months.items()}, dict(source))


def count_months(spark: SparkSession, *, destination: str, folder: str) -> dict[str, dict[str, int]]:
    """Count rows a month with both readers; runs in the Spark child."""
    from storage_core.spark import read  # noqa: PLC0415 - imports PySpark

    def months(frame: DataFrame) -> dict[str, int]:
        return {str(row["month"]): int(row["count"]) for row in frame.groupBy("month").count().collect()}

    return {
        "the reader that follows the log": months(read(spark, destination)),
        "Spark's own Parquet reader": months(spark.read.parquet(folder)),
    }


def by_month(counts: Mapping[int, int]) -> str:
    """Tell rows a month in a line."""
    return " ".join(f"{month}:{count:,}" for month, count in sorted(Counter(counts).items()))


def _folder_of(store: Store) -> str | None:
    """Return the URI of a destination that is a directory; our URLs, unlike URIs, escape nothing."""
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
