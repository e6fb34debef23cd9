"""The data source behind `format("lockgate")`, for batch and streaming writes and reads, and `read` by it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from lockgate.storage_core.commit.destination.as_of import AsOf
from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.spark.reader.partition_reader import LiveFilesReader
from lockgate.storage_core.spark.reader.published_schema import check_parquet, published_schema
from lockgate.storage_core.spark.reader.spark_reader import spark_frame
from lockgate.storage_core.spark.schema.columns import quoted
from lockgate.storage_core.spark.source_options import (
    ReadOptions,
    read_options,
    stream_options,
    write_options,
)
from lockgate.storage_core.spark.writer.batch import plan_write
from lockgate.storage_core.spark.writer.stream import plan_batches
from lockgate.storage_core.stores import open_store


class LockgateDataSource(DataSource):
    """Writes atomic jobs, and reads whole jobs only.

    The options are in `lockgate.storage_core.spark.source_options`. Spark creates this object in a process of
    its own.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "lockgate"

    def schema(self) -> str:
        """Return the columns of the destination.

        Raises:
            InvalidInputError: Nothing was published there, a file is not Parquet, or an option is invalid.
        """
        return published_schema(open_store(self._reading.path), self._manifest)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the live files with the columns of the schema."""
        store = open_store(self._reading.path)
        check_parquet(store.url, self._manifest)
        return LiveFilesReader(schema, self._manifest, store.url, self._reading)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Set up the job and return its writer.

        Raises:
            InvalidInputError: An option, a column or the destination is invalid; nothing was written.
            ConflictError: The mode is `fail` and the destination has data, or the columns do not fit.
        """
        return plan_write(schema, write_options(self.options, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Return a writer that writes one batch of a streaming query as one job.

        Raises:
            InvalidInputError: An option, a column or the destination is invalid; nothing was written.
        """
        return plan_batches(schema, stream_options(self.options, overwrite=overwrite))

    @cached_property
    def _reading(self) -> ReadOptions:
        return read_options(self.options)

    @cached_property
    def _manifest(self) -> Manifest:
        # Read once: columns and files belong to the same turn, even if a job commits in between.
        return read_manifest(self._reading.path, as_of=self._reading.as_of)


def register(spark: SparkSession) -> None:
    """Register `format("lockgate")` with a session, for this thread; idempotent."""
    spark.dataSource.register(LockgateDataSource)
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        # Spark looks up a Python source in the thread's active session, which only the first thread has.
        jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - there is no public call


def read(
    spark: SparkSession,
    destination: str,
    *,
    as_of: AsOf | None = None,
    columns: Sequence[str] | None = None,
    by_spark: bool = False,
) -> DataFrame:
    """Return the published data of a destination: whole jobs only, as of this moment.

    Args:
        spark: Spark session, with which the data source is registered.
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        as_of: Turn of the destination log, a time or a tag: see `lockgate.read_manifest`.
        columns: Columns to read from the files; Spark does not prune the columns of a Python source.
        by_spark: Let Spark's own Parquet reader read exactly the live files, for data that Spark wrote: with
            its calendars, options, comments and metadata. By default the data source `lockgate` reads them,
            in Python.

    Raises:
        InvalidInputError: Nothing was published there, a file is not Parquet, or `as_of` cannot be read;
            or Spark's own reader does not reach the files, or would read other partition values.
        AnalysisException: A column does not exist, or a file is gone.
    """
    register(spark)
    store, manifest = open_store(destination), read_manifest(destination, as_of=as_of)
    ddl = published_schema(store, manifest)
    if by_spark:
        frame = spark_frame(spark, store, manifest, ddl)
        return frame if columns is None else frame.select(*(quoted(name) for name in columns))
    reader = spark.read.format("lockgate").option("timeZone", spark.conf.get("spark.sql.session.timeZone"))
    if as_of is not None:
        reader = reader.option("turn", manifest.turn)
    if columns is None:
        return reader.load(destination)
    known = reader.load(destination).schema
    return reader.schema(StructType([known[name] for name in columns])).load(destination)
