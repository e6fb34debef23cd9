"""Compare Lockgate's Spark source with Spark's own Parquet writer, at a local destination.

    python -m benchmarks.spark_write [--rows 1000000] [--rounds 5] [--master "local[2]"]

Both write the same ten columns, snappy, unpartitioned, from a generated range, in one warm session.
Lockgate's time is that of the whole job: set-up, task commits, the job commit and `_SUCCESS`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEN_COLUMNS = (
    "id",
    "id % 1000 AS customer",
    "cast(id % 7 AS int) AS day",
    "rand(1) AS price",
    "rand(2) * 100 AS weight",
    "cast(rand(3) * 1000 AS decimal(10, 2)) AS amount",
    "concat('item-', id % 5000) AS item",
    "uuid() AS reference",
    "timestamp_seconds(1700000000 + id) AS moment",
    "id % 3 = 0 AS paid",
)


def by_lockgate(frame: DataFrame, destination: str) -> None:
    write(frame, destination)


def by_spark(frame: DataFrame, destination: str) -> None:
    frame.write.parquet(destination)


def seconds(writer: Callable[[DataFrame, str], None], frame: DataFrame, root: Path) -> tuple[float, int]:
    """Write once to a new folder, and return wall seconds and bytes of data files."""
    destination = root / uuid.uuid4().hex
    began_s = time.perf_counter()
    writer(frame, str(destination))
    wall_s = time.perf_counter() - began_s
    return wall_s, sum(file.stat().st_size for file in destination.glob("*.parquet"))


def show(spark: SparkSession, rows: int, rounds: int, master: str) -> None:
    """Measure both ways alternately after a warm-up round, and print medians."""
    frame = spark.range(rows).selectExpr(*TEN_COLUMNS)
    seen: dict[Callable[[DataFrame, str], None], list[tuple[float, int]]] = {by_lockgate: [], by_spark: []}
    with tempfile.TemporaryDirectory() as root:
        for number in range(rounds + 1):
            for writer, results in seen.items():
                measured = seconds(writer, frame, Path(root))
                if number > 0:
                    results.append(measured)
    table = Table(title=f"{rows:,} rows of {len(TEN_COLUMNS)} columns, {master} (median of {rounds})")
    for heading in ("what", "wall s", "least s", "greatest s", "ratio", "MiB"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    base_s = statistics.median(wall_s for wall_s, _ in seen[by_spark])
    for writer, results in seen.items():
        walls = [wall_s for wall_s, _ in results]
        table.add_row(
            "lockgate.storage_core.spark.frame_write" if writer is by_lockgate else "df.write.parquet",
            f"{statistics.median(walls):.2f}",
            f"{min(walls):.2f}",
            f"{max(walls):.2f}",
            f"{statistics.median(walls) / base_s:.2f}",
            f"{results[-1][1] / 2**20:.1f}",
        )
    Console().print(table)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    spark = spark_session("lockgate-bench", master=options.master)
    spark.sparkContext.setLogLevel("OFF")
    show(spark, options.rows, options.rounds, options.master)
    spark.stop()


if __name__ == "__main__":
    main()
