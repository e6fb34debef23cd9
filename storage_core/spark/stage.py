"""`stage`: Spark's own writer fills a staging directory, for workers to turn into pending uploads.

Spark's own committer settles retries and speculation there; the listing of the finished stage, with sizes,
is the job's task list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from pyspark.sql import DataFrame

from lockgate.storage_core.commit import StagedFile
from lockgate.storage_core.commit.staged_files.listing import list_staged
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.spark.schema.columns import partition_columns

StageFormat = Literal["parquet", "orc", "json", "csv"]

_SETTLED: Final[Mapping[str, str]] = {
    # What a session may have switched off: the mark of a finished stage, and the commit in one step for all.
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
    """Write a data frame with Spark's own writer into a fresh directory, and freeze what it holds.

    Args:
        df: What to write.
        staging_dir: Not there yet; on a disk that Spark's executors and the workers see. It is made with
            mode 0700.
        format: Of the files.
        partition_by: Columns that become folders.
        options: Of Spark's writer for that format, such as `compression` or `header`.

    Returns:
        Every staged file with its size, for `group_into_tasks`.

    Raises:
        InvalidInputError: A format, a column or the directory cannot be; nothing was written.
        ConflictError: The directory is there already, or Spark left no mark that it finished.
    """
    if format not in get_args(StageFormat):
        raise InvalidInputError(
            f"stage: format {format!r} is not known; use one of {', '.join(get_args(StageFormat))}"
        )
    folders = partition_columns(df.schema, partition_by)
    fresh = _fresh(Path(staging_dir).absolute())
    writer = df.write.format(format).mode("append").options(**{**_SETTLED, **(options or {})})
    (writer.partitionBy(*folders) if folders else writer).save(fresh.as_uri())
    return list_staged(fresh)


def _fresh(staging_dir: Path) -> Path:
    """Make the directory; who made it owns it, so another run's stage is never mixed in."""
    try:
        staging_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staging_dir.mkdir(mode=0o700)
    except FileExistsError:
        raise ConflictError(
            f"staging directory {staging_dir} is there already; every run of Spark needs a fresh one; "
            "nothing was written"
        ) from None
    except OSError as error:
        raise InvalidInputError(f"staging directory {staging_dir} cannot be made: {error.strerror}") from None
    return staging_dir
