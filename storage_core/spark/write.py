"""`write`: a data frame becomes one job, with the modes too that Spark keeps from a Python source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Literal
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from lockgate.storage_core.commit import Job, Progress, Receipt, open_job, read_manifest
from lockgate.storage_core.commit.destination.conflict_mode import visible_files
from lockgate.storage_core.commit.records.job import Scope
from lockgate.storage_core.concurrency import no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.data_source import register
from lockgate.storage_core.spark.options import Mode, write_options
from lockgate.storage_core.spark.schema.columns import check_columns, quoted, recorded_columns
from lockgate.storage_core.stores import open_store

WriteMode = Literal["append", "overwrite", "replace", "fail", "error", "errorifexists", "ignore"]

_MODES: Final[Mapping[str, Mode]] = {
    "append": "append",
    "overwrite": "replace",
    "replace": "replace",
    "fail": "fail",
    "error": "fail",
    "errorifexists": "fail",
    "ignore": "fail",
}


def write(
    df: DataFrame,
    destination: str,
    *,
    mode: WriteMode = "append",
    scope: Scope | None = None,
    committer: str | None = None,
    partition_by: Sequence[str] = (),
    sort_within_partitions: bool = True,
    job_name: str | None = None,
    description: str = "",
    evolve_schema: bool = False,
    replaced_retention_s: float = 0.0,
    compression: str = "snappy",
    options: Mapping[str, str | int] | None = None,
    settings: Settings | None = None,
    progress: Progress = no_progress,
) -> Receipt | None:
    """Write a data frame as one job: all of it becomes visible, or nothing.

    Nothing is repartitioned: every Spark task writes a file for each partition that it has rows of.

    Args:
        df: What to write.
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        mode: `append`; `replace` (Spark's `overwrite`): what was there goes when the new data are visible;
            `fail` (`error`, `errorifexists`): there must be no data; `ignore`: do nothing if there are.
        scope: `destination`, or `partitions`: the mode looks at the folders that receive data only (Spark's
            dynamic partition overwrite); by default what `spark.sql.sources.partitionOverwriteMode` says for
            a replacement, else the committer's.
        committer: By name; by default what the settings say, else `magic`.
        partition_by: Columns that become folders, in this order; not kept in the files.
        sort_within_partitions: Sort each task's rows by the partition columns, so that few files are open.
            Rows are not otherwise ordered; pass False where they have an order to keep.
        job_name: Stable over retries of the same write, so that a retry meets its own job; else a fresh one.
        description: For people; stands in `_SUCCESS`.
        evolve_schema: Let `append` bring columns that do not fit the destination's.
        replaced_retention_s: How long replaced files stay for readers of older log entries.
        compression: snappy, zstd, gzip, lz4 or none.
        options: More options of the data source: rowGroupRows, rowGroupBytes, maxOpenFiles,
            maxRecordsPerFile, partBytes.
        settings: Of this process; from the environment by default. Tasks read their own environment.
        progress: Called with step, done and total while the job commits.

    Returns:
        What was published; None if the mode is `ignore` and there were data.

    Raises:
        InvalidInputError: A mode, an option, a column or the destination cannot be. Nothing was written.
        ConflictError: The destination has data and the mode is `fail`, or the columns do not fit.
        OutcomeUnknownError: It is not known whether the job is decided; recovery settles it.
        JobFailedError: The job ended without publishing anything.
        PySparkException: Spark failed, or a task did; the job is aborted and nothing is visible.
    """
    if mode not in _MODES:
        raise InvalidInputError(f"write: mode {mode!r} is not known; use one of {', '.join(_MODES)}")
    folders = check_columns(df.schema, partition_by)
    given = {
        "path": destination,
        "compression": compression,
        **{k: str(v) for k, v in (options or {}).items()},
    }
    write_options(given, overwrite=False)
    if mode == "ignore" and _has_data(destination, settings):
        return None
    with open_job(
        destination,
        job_name or f"spark-{uuid4()}",
        mode=_MODES[mode],
        scope=scope or _session_scope(df, _MODES[mode]),
        committer=committer,
        columns=recorded_columns(df.schema, folders),
        evolve_schema=evolve_schema,
        description=description,
        replaced_retention_s=replaced_retention_s,
        settings=settings,
        progress=progress,
    ) as job:
        if job.receipt is not None:
            return job.receipt  # an earlier try of the same name was decided: this one met its commit
        _save(df, job, folders, given, sort=sort_within_partitions)
        return job.commit()


def _session_scope(df: DataFrame, mode: str) -> Scope | None:
    """Return the scope that the session's own setting asks for, None where it says nothing."""
    dynamic = df.sparkSession.conf.get("spark.sql.sources.partitionOverwriteMode", "static") or "static"
    return "partitions" if mode == "replace" and dynamic.lower() == "dynamic" else None


def _save(
    df: DataFrame, job: Job, partition_by: Sequence[str], options: Mapping[str, str], *, sort: bool
) -> None:
    """Let Spark's tasks write and commit; the job is committed here, where its lease is held."""
    register(df.sparkSession)
    rows = (
        df.sortWithinPartitions(*(col(quoted(name)) for name in partition_by))
        if sort and partition_by
        else df
    )
    writer = rows.write.format("lockgate").mode("append").options(**options)
    writer = writer.option("partitionBy", json.dumps(partition_by)) if partition_by else writer
    address = {"jobId": job.job_id, "jobAttempt": job.job_attempt, "commit": "task"}
    writer.options(**address).option("path", job.destination).save()


def _has_data(destination: str, settings: Settings | None) -> bool:
    if read_manifest(destination, settings=settings).files:
        return True
    return next(visible_files(open_store(destination, settings)), None) is not None
