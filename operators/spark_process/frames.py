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


def write_frame(
    spark: SparkSession,
    *,
    python_callable: str | Callable[..., Any],
    op_kwargs: Mapping[str, Any],
    staging: str | None,
    format: StageFormat,  # noqa: A002 - as Spark calls it
    partition_by: Sequence[str],
    options: Mapping[str, str],
    uploads: Mapping[str, Any] | None = None,
) -> list[tuple[str, int, int]] | int:
    """Write the DataFrame of the user's function by Spark's own writer, to a stage or into uploads on S3.

    Args:
        spark: The session.
        python_callable: The function.
        op_kwargs: Its arguments.
        staging: New directory for the stage; None: raise if this Spark cannot write uploads.
        format: Format of the files.
        partition_by: Columns that become folders.
        options: Options of Spark's writer.
        uploads: To write uploads: `destination`, `names` (fields of the job's `JobNames`), and `spool`, a
            new file for their list.

    Returns:
        Fields of each `StagedFile`; or, of uploads, bytes of their parts.

    Raises:
        InvalidInputError: The function did not return a DataFrame, or this Spark cannot write uploads.
    """
    from lockgate.storage_core.settings import load_settings
    from lockgate.storage_core.spark.pending_write import JobNames, obstacle, write_pending

    reason = "" if uploads is None else obstacle(spark, s3=True)
    if staging is None and reason:
        raise InvalidInputError(
            f"via='spark' does not go with {reason}; nothing was written; use via='staged'"
        )
    if reason:
        sys.stdout.write(f"via='auto' stages the files: 'spark' does not go with {reason}\n")
    frame = _frame(spark, python_callable, op_kwargs)
    written: dict[str, Any] = {"format": format, "partition_by": partition_by, "options": options}
    if uploads is None or reason:
        files = stage(frame, staging or "", **written)
        return [(file.path, file.size, file.modified_ns) for file in files]
    names, settings = JobNames(**uploads["names"]), load_settings()
    write_pending(frame, names, uploads["destination"], Path(uploads["spool"]), **written, settings=settings)
    return settings.part_bytes


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
