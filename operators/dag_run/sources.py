"""Read the source of the DAG `dataset_commit`: files that Spark can read, with chosen columns and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lockgate.operators.dag_run.parameters import filled_in
from lockgate.storage_core.errors import InvalidInputError

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
    transform: str | None = None,
) -> DataFrame:
    """Return the rows of files.

    Args:
        spark: The session.
        source: Path or URL of a file or a directory.
        source_format: `parquet`, `orc`, `json`, `csv`, or another format of this Spark.
        source_options: The format's options, such as `{"header": "true"}`.
        columns: Spark SQL expressions, such as `cast(delay as int) as delay`; None or empty: all columns.
        where: Spark SQL condition on the rows; None or empty: all rows.
        transform: `package.module:function`, installed or in the job's libraries, that takes the DataFrame
            and returns the one to write; None or empty: no transformation.

    Raises:
        InvalidInputError: The source does not exist, or the expressions do not fit its columns.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - in the child only

    from lockgate.operators.spark_process.child import resolve  # noqa: PLC0415 - imports PySpark

    try:
        frame = spark.read.format(source_format).options(**dict(source_options or {})).load(source)
        if where:
            frame = frame.where(where)
        expressions = filled_in(columns)
        frame = frame.selectExpr(*expressions) if expressions else frame
        return resolve(transform)(frame) if transform else frame
    except AnalysisException as error:
        reason = str(error).strip().partition("\n")[0].rstrip("; ")
        raise InvalidInputError(
            f"source {source} cannot be read as {source_format} with these columns and rows: {reason}; "
            "nothing was staged; correct the parameters and start a new run"
        ) from error
