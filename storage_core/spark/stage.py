"""Write a data frame with Spark's own writer to a staging directory, for workers to upload.

Spark's committer handles retries and speculation there. The listing of the finished stage, with sizes, is the
job's task list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, get_args

from pyspark.sql import DataFrame

from lockgate.storage_core.commit.records.expected_tasks import StagedFile
from lockgate.storage_core.commit.staged_files import list_staged, make_stage_dir
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.schema.columns import partition_columns

StageFormat = Literal["parquet", "orc", "json", "csv"]

_COMMIT_SETTINGS: Final[Mapping[str, str]] = {
    # A session may have disabled these: the marker of a finished stage, and one commit for all tasks.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}


def stage(
    df: DataFrame,
    staging_dir: str | Path,
    *,
    format: StageFormat = "parquet",  # noqa: A002 - Spark's own word
    partition_by: Sequence[str] = (),
    options: Mapping[str, str | int | bool] | None = None,
) -> list[StagedFile]:
    """Write a data frame with Spark's own writer to a new directory, and list its files.

    Args:
        df: Data frame to write.
        staging_dir: Directory to create with mode 0700, on a disk that Spark's executors and workers see.
        format: Format of the files.
        partition_by: Columns that become folders.
        options: Options of Spark's writer for that format, such as `compression` or `header`.

    Returns:
        Every staged file with its size, for `group_into_tasks`.

    Raises:
        InvalidInputError: The format, a column or the directory is invalid; nothing was written.
        ConflictError: The directory exists, or Spark left no marker that it finished.
    """
    if format not in get_args(StageFormat):
        raise InvalidInputError(
            f"stage: format {format!r} is not known; use one of {', '.join(get_args(StageFormat))}"
        )
    new_dir = Path(staging_dir).absolute()
    folders = partition_columns(df.schema, partition_by)
    make_stage_dir(new_dir)
    writer = df.write.format(format).mode("append").options(**{**_COMMIT_SETTINGS, **(options or {})})
    (writer.partitionBy(*folders) if folders else writer).save(f"file://{new_dir}")
    files = list_staged(new_dir)
    for file in files:
        with suppress(PermissionError):  # an executor's user owns it; the directory is private
            (new_dir / file.path).chmod(0o600)
    return files
