"""The floor of a write by Python: rows are carried to Python workers by Arrow, and dropped there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Dropping(DataSourceArrowWriter):
    """Reads all rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop the rows of one task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DroppedRows(DataSource):
    """A data source that keeps nothing."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "dropped"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark's
        """Return the writer."""
        return Dropping()


def drop_rows(df: DataFrame, destination: str) -> None:  # noqa: ARG001 - as the other ways
    df.sparkSession.dataSource.register(DroppedRows)
    df.write.format("dropped").mode("append").save()
