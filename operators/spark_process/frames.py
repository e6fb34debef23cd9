"""Read the source of the DAG `dataset_commit`: files that Spark can read, with chosen columns and rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.operators.dag_run.parameters import filled_in
from lockgate.operators.spark_process.child import resolve
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.stage import stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lockgate.operators.trigger_rights import AllowLists
    from lockgate.storage_core.spark.stage import StageFormat


def read_files(
    spark: SparkSession,
    *,
    source: str,
    source_format: str,
    source_options: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    transform: str | None = None,
    allowed: AllowLists | None = None,
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
        allowed: What the arguments may name, if they come from a form; None: anything.

    Raises:
        InvalidInputError: The source does not exist, the expressions do not fit its columns, or an argument
            is not allowed.
    """
    from pyspark.errors import AnalysisException

    from lockgate.operators.spark_process.child import resolve
    from lockgate.storage_core.spark.form_values import check_options

    options = dict(source_options or {})
    if allowed is not None:
        if transform:
            allowed.transform(transform)
        allowed.options("source_options", options)
        check_options(spark, source_format, options)
        source = allowed.source(source)
    try:
        read = spark.read.format(source_format).options(**options).load(source)
        if allowed is not None:
            allowed.read_files(read.inputFiles())
        frame = chosen(read, filled_in(columns), where, is_form=allowed is not None)
        return resolve(transform)(frame) if transform else frame
    except AnalysisException as error:
        reason = str(error).strip().partition("\n")[0].rstrip("; ")
        raise InvalidInputError(
            f"source {source} cannot be read as {source_format} with these columns and rows: {reason}; "
            "nothing was staged; correct the parameters and start a new run"
        ) from error


def chosen(
    read: DataFrame, columns: Sequence[str] | None, where: str | None, *, is_form: bool = False
) -> DataFrame:
    """Return the rows of a condition, and the columns of expressions.

    Args:
        read: All rows and columns.
        columns: Spark SQL expressions; None or empty: all columns.
        where: Spark SQL condition; None or empty: all rows.
        is_form: The expressions come from a form: refuse those that read anything else.

    Raises:
        AnalysisException: An expression does not fit the columns.
        InvalidInputError: An expression is not allowed in a form.
    """
    from lockgate.storage_core.spark.form_values import check_expressions, check_plan

    if is_form:
        check_expressions(read, [*(columns or ()), *([where] if where else ())])
    frame = read.where(where) if where else read
    frame = frame.selectExpr(*columns) if columns else frame
    if is_form:
        check_plan(frame, read)
    return frame


def stage_frame(
    spark: SparkSession,
    *,
    python_callable: str | Callable[..., Any],
    op_kwargs: Mapping[str, Any],
    staging: str,
    format: StageFormat,  # noqa: A002 - as Spark calls it
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> list[tuple[str, int, int]]:
    """Stage the DataFrame of the user's function by Spark's own writer; return each `StagedFile`'s fields.

    Raises:
        InvalidInputError: The function did not return a DataFrame.
    """
    frame = _frame(spark, python_callable, op_kwargs)
    files = stage(frame, Path(staging), format=format, partition_by=list(partition_by), options=dict(options))
    return [(file.path, file.size, file.modified_ns) for file in files]


def stream_frame(
    spark: SparkSession,
    *,
    python_callable: str | Callable[..., Any],
    op_kwargs: Mapping[str, Any],
    staging: str | None,
    destination: str,
    names: Mapping[str, str],
    spool: str,
    format: StageFormat,  # noqa: A002 - as Spark calls it
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> dict[str, Any]:
    """Write the DataFrame of the user's function into open uploads on S3, listed in the file `spool`.

    Args:
        spark: The session.
        python_callable: The function.
        op_kwargs: Its arguments.
        staging: Directory to stage the files in if this Spark cannot write uploads; None: raise.
        destination: URL of the destination.
        names: Fields of the job's `JobNames`.
        spool: New file for the list of the uploads.
        format: Format of the files.
        partition_by: Columns that become folders.
        options: Options of Spark's writer.

    Returns:
        `part_bytes` of the uploads, or the `staged` files.

    Raises:
        InvalidInputError: The function did not return a DataFrame, or this Spark cannot write uploads.
    """
    from lockgate.storage_core.settings import load_settings
    from lockgate.storage_core.spark.pending_write import JobNames, obstacle, write_pending

    if reason := obstacle(spark, s3=True):
        if staging is None:
            raise InvalidInputError(
                f"via='spark' does not go with {reason}; nothing was written; use via='staged'"
            )
        sys.stdout.write(f"via='auto' stages the files: 'spark' does not go with {reason}\n")
        staged = stage_frame(
            spark,
            python_callable=python_callable,
            op_kwargs=op_kwargs,
            staging=staging,
            format=format,
            partition_by=partition_by,
            options=options,
        )
        return {"staged": staged}
    frame, settings = _frame(spark, python_callable, op_kwargs), load_settings()
    write_pending(
        frame,
        JobNames(**names),
        destination,
        Path(spool),
        format=format,
        partition_by=partition_by,
        options=options,
        settings=settings,
    )
    return {"part_bytes": settings.part_bytes}


def _frame(
    spark: SparkSession, python_callable: str | Callable[..., Any], op_kwargs: Mapping[str, Any]
) -> DataFrame:
    from pyspark.sql import DataFrame

    frame = resolve(python_callable)(spark, **op_kwargs)
    if not isinstance(frame, DataFrame):
        raise InvalidInputError(
            f"{python_callable} returned {type(frame).__name__}: it must return a Spark DataFrame; "
            "nothing was staged"
        )
    return frame
