"""The ways in which Spark writes a data frame as Parquet: its own, S3A's committers, Lockgate's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from lockgate.storage_core.spark.frame_write import write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Place = Literal["local", "s3"]

_CLOUD: Final = "org.apache.spark.internal.io.cloud"
_BY_COMMITTER: Final[Mapping[str, str]] = {
    "spark.sql.sources.commitProtocolClass": f"{_CLOUD}.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": f"{_CLOUD}.BindingParquetOutputCommitter",
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
}
FLOOR: Final = "dropped"
_V: Final = "mapreduce.fileoutputcommitter.algorithm.version"


class Writer(NamedTuple):
    """A way of writing.

    Attributes:
        place: Where it writes.
        write: Writes a data frame to a new folder, all of it visible at the end.
        committer: Name of the S3A committer, which `_SUCCESS` must name; None: another's.
    """

    place: Place
    write: Callable[[DataFrame, str], object]
    committer: str | None = None


def by_spark(df: DataFrame, destination: str, *, version: int) -> None:
    df.write.option(_V, version).parquet(destination)


def by_s3a(df: DataFrame, destination: str, *, committer: str) -> None:
    with _settings(df.sparkSession, {**_BY_COMMITTER, "fs.s3a.committer.name": committer}):
        df.write.parquet(destination.replace("s3://", "s3a://"))


def by_tuned_magic(df: DataFrame, destination: str) -> None:
    """Write as S3A's users tune it, through a file system of its own: Hadoop keeps one for each scheme."""
    settings = {
        **_BY_COMMITTER,
        "fs.s3a.committer.name": "magic",
        "fs.s3t.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "mapreduce.outputcommitter.factory.scheme.s3t": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
        "fs.s3a.committer.magic.track.commits.in.memory.enabled": "true",
        "fs.s3a.multipart.size": "8M",
        "fs.s3a.fast.upload.buffer": "bytebuffer",
    }
    with _settings(df.sparkSession, settings):
        df.write.parquet(destination.replace("s3://", "s3t://"))


def by_staging(df: DataFrame, destination: str) -> None:
    """Write as a session without hadoop-aws: files in a directory are uploaded."""
    with TemporaryDirectory(prefix="lockgate-bench-") as folder:
        write(df, destination, via="spark", staging=folder)


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


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


WRITERS: Final[Mapping[str, Writer]] = {
    "spark-v1": Writer("local", partial(by_spark, version=1)),
    "spark-v2": Writer("local", partial(by_spark, version=2)),
    "lockgate-spark-local": Writer("local", partial(write, via="spark")),
    "lockgate-direct-local": Writer("local", partial(write, via="direct")),
    FLOOR: Writer("local", drop_rows),
    "s3a-magic": Writer("s3", partial(by_s3a, committer="magic"), "magic"),
    "s3a-magic-tuned": Writer("s3", by_tuned_magic, "magic"),
    "s3a-directory": Writer("s3", partial(by_s3a, committer="directory"), "directory"),
    "lockgate-spark-s3": Writer("s3", partial(write, via="spark")),
    "lockgate-staged-s3": Writer("s3", by_staging),
    "lockgate-direct-s3": Writer("s3", partial(write, via="direct")),
}
