"""The data source `lockgate`: what `format("lockgate")` reaches, for writing, streaming and reading."""

from __future__ import annotations

from functools import cached_property

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from lockgate.storage_core.commit import Manifest, read_manifest
from lockgate.storage_core.spark.options import ReadOptions, read_options, stream_options, write_options
from lockgate.storage_core.spark.reader.published_schema import check_parquet, published_schema
from lockgate.storage_core.spark.reader.reader import LiveFilesReader
from lockgate.storage_core.spark.writer.batch import plan_write
from lockgate.storage_core.spark.writer.stream import plan_batches
from lockgate.storage_core.stores import open_store


class LockgateDataSource(DataSource):
    """Writes a job that appears all at once, and reads whole jobs only.

    Options are in `lockgate.storage_core.spark.options`. Spark builds this object in a process of its own.
    """

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(…)`."""
        return "lockgate"

    def schema(self) -> str:
        """Return the columns of what is to be read.

        Raises:
            InvalidInputError: Nothing was published there, it is not Parquet, or an option cannot be.
        """
        return published_schema(open_store(self._reading.path), self._manifest)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the live files, with as many columns as the schema asks for."""
        store = open_store(self._reading.path)
        check_parquet(store.url, self._manifest)
        return LiveFilesReader(schema, self._manifest, store.url, self._reading)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Set the job up and return what writes it.

        Raises:
            InvalidInputError: An option, a column or the destination cannot be; nothing was written.
            ConflictError: The mode is `fail` and the destination has data, or the columns do not fit.
        """
        return plan_write(schema, write_options(self.options, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Return what writes one batch of a streaming query as a job of its own.

        Raises:
            InvalidInputError: An option, a column or the destination cannot be; nothing was written.
        """
        return plan_batches(schema, stream_options(self.options, overwrite=overwrite))

    @cached_property
    def _reading(self) -> ReadOptions:
        return read_options(self.options)

    @cached_property
    def _manifest(self) -> Manifest:
        # Read once: columns and files belong to the same turn, also when a job commits in between.
        return read_manifest(self._reading.path, as_of=self._reading.as_of)


def register(spark: SparkSession) -> None:
    """Make `format("lockgate")` known to a session, in this thread; again is harmless."""
    spark.dataSource.register(LockgateDataSource)
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        # Spark looks a Python source up in the thread's active session, which only the first thread has.
        jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - there is no public call
