"""Read a destination into a data frame, by its log."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lockgate.storage_core.spark.data_source import register


def read(
    spark: SparkSession,
    destination: str,
    *,
    as_of: int | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the published data of a destination: whole jobs only, as of this moment.

    Args:
        spark: Spark session, with which the data source is registered.
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        as_of: Turn of the destination log; its files may be gone if a later `replace` removed them.
        columns: Columns to read from the files; Spark does not prune the columns of a Python source.

    Raises:
        AnalysisException: Nothing was published there, or a column does not exist.
    """
    register(spark)
    reader = spark.read.format("lockgate").option("timeZone", spark.conf.get("spark.sql.session.timeZone"))
    if as_of is not None:
        reader = reader.option("asOf", as_of)
    if columns is None:
        return reader.load(destination)
    known = reader.load(destination).schema
    return reader.schema(StructType([known[name] for name in columns])).load(destination)
