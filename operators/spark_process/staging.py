"""Stage a user's DataFrame as files, in the Spark child of `SparkWriteOperator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.operators.spark_process.child import resolve
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.stage import stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.storage_core.spark.stage import StageFormat


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
    from pyspark.sql import DataFrame  # noqa: PLC0415 - in the child only

    frame = resolve(python_callable)(spark, **op_kwargs)
    if not isinstance(frame, DataFrame):
        raise InvalidInputError(
            f"{python_callable} returned {type(frame).__name__}: it must return a Spark DataFrame; "
            "nothing was staged"
        )
    files = stage(frame, Path(staging), format=format, partition_by=list(partition_by), options=dict(options))
    return [(file.path, file.size, file.modified_ns) for file in files]
