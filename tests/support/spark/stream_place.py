"""The directories of a streaming query: its input, destination and checkpoint, and the visible rows."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS: Final = 10
"""Rows of one batch."""
_EPOCH_S: Final = 1_700_000_000


@dataclass(frozen=True)
class Place:
    """One query's folders: `in`, `lake` and `checkpoint` in a separate home directory."""

    home: Path

    @property
    def destination(self) -> str:
        return str(self.home / "lake")

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    def feed(self, *batches: int) -> None:
        """Write the input of these batches: batch 2 has the ids from 20 to 29."""
        (self.home / "in").mkdir(parents=True, exist_ok=True)
        for batch in batches:
            rows = (json.dumps({"id": batch * ROWS + row, "day": row % 2}) for row in range(ROWS))
            aside = self.home / f"{batch}.json"
            aside.write_text("\n".join(rows))
            os.utime(aside, (_EPOCH_S + batch,) * 2)  # Spark takes files in the order of their times
            aside.rename(self.home / "in" / aside.name)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the input as a stream with one file per batch."""
        stream = spark.readStream.schema("id long, day long").option("maxFilesPerTrigger", 1)
        return stream.json(str(self.home / "in"))

    def start(
        self, spark: SparkSession, frame: DataFrame | None = None, output_mode: str = "append", **options: str
    ) -> StreamingQuery:
        """Start a query that ends when it has written what is there."""
        writer = (frame or self.rows(spark)).writeStream.format("lockgate").outputMode(output_mode)
        writer = writer.options(**{"checkpointLocation": str(self.checkpoint), **options})
        return writer.trigger(availableNow=True).start(self.destination)

    def run(
        self, spark: SparkSession, frame: DataFrame | None = None, output_mode: str = "append", **options: str
    ) -> None:
        """Run a query until it has written what is there."""
        self.start(spark, frame, output_mode, **options).awaitTermination()

    def forget_last_commit(self) -> None:
        """Take back what Spark wrote down after its last batch, so that it replays the batch."""
        last = max(int(path.name) for path in self.checkpoint.glob("commits/[0-9]*"))
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink()

    def ids(self, spark: SparkSession) -> list[int]:
        """Return the ids that readers of the log see."""
        return sorted(row.id for row in read(spark, self.destination).select("id").collect())

    def listed_ids(self, spark: SparkSession) -> list[int]:
        """Return the ids that Spark's own listing reader sees."""
        return sorted(row.id for row in spark.read.parquet(self.destination).select("id").collect())

    def listed(self) -> list[str]:
        """The data files that a listing finds."""
        return sorted(info.key for info in visible_files(open_store(self.destination)))

    def open_uploads(self) -> list[str]:
        """Keys of the uploads that are open."""
        return [info.key for page in open_store(self.destination).upload_pages() for info in page]
