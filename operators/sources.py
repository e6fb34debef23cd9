"""What `dags/dataset_commit.py` writes: any files that Spark reads, with a choice of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_files(
    spark: SparkSession,
    *,
    source: str,
    source_format: str,
    source_options: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> DataFrame:
    """Return the rows of files.

    Args:
        spark: The session.
        source: Path or URL of a file or a directory.
        source_format: `parquet`, `orc`, `json`, `csv`, or whatever else this Spark reads.
        source_options: The format's options, such as `{"header": "true"}`.
        columns: Spark SQL expressions, such as `cast(delay as int) as delay`; None or empty: all columns.
        where: Spark SQL condition on the rows; None or empty: all rows.
    """
    frame = spark.read.format(source_format).options(**dict(source_options or {})).load(source)
    if where:
        frame = frame.where(where)
    return frame.selectExpr(*columns) if columns else frame
