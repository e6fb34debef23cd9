"""Write a data frame as one job, including the modes that Spark does not pass to a Python source.

Rows go one of two ways. Spark: Spark's own writer, in the JVM, into pending files: uploads that stay open, or
files in a directory, which are uploaded while Spark writes others, or linked where the destination is on a
file system. Direct: by Arrow to Python, and from there into open uploads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.commit.records.job_record import ScopeName
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.data_source import register
from lockgate.storage_core.spark.pending_write import obstacle, write_and_adopt
from lockgate.storage_core.spark.schema.columns import check_columns, quoted, recorded_columns
from lockgate.storage_core.spark.source_options import Mode, write_options
from lockgate.storage_core.spark.writer.batch import settings_for
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.open_store import parse_destination

Via = Literal["spark", "direct"]
WriteMode = Literal["append", "overwrite", "replace", "fail", "error", "errorifexists", "ignore"]

LOG: Final = logging.getLogger("lockgate.spark")

_OF_THE_DIRECT_WAY: Final = frozenset({"rowgrouprows", "rowgroupbytes", "maxopenfiles"})
_SPARKS_CODECS: Final[Mapping[str, str]] = {"lz4": "lz4_raw", "none": "uncompressed"}

_MODES: Final[Mapping[str, Mode]] = {
    "append": "append",
    "overwrite": "replace",
    "replace": "replace",
    "fail": "fail",
    "error": "fail",
    "errorifexists": "fail",
    "ignore": "fail",
}


class WriteReceipt(Receipt, frozen=True, kw_only=True):
    """Receipt of `write`.

    Attributes:
        via: Way that the rows went; None if an earlier try with this name had committed the job.
    """

    via: Via | None


def write(
    df: DataFrame,
    destination: str,
    *,
    mode: WriteMode = "append",
    scope: ScopeName | None = None,
    committer: str | None = None,
    via: Literal["auto"] | Via = "auto",
    staging: str | None = None,
    partition_by: Sequence[str] = (),
    sort_within_partitions: bool = True,
    job_name: str | None = None,
    description: str = "",
    evolve_schema: bool = False,
    tables: Sequence[str] = (),
    compression: str = "snappy",
    options: Mapping[str, str | int] | None = None,
    settings: Settings | None = None,
    progress: Progress = no_progress,
) -> WriteReceipt | None:
    """Write a data frame as one job: all of it becomes visible, or nothing.

    Rows are not repartitioned: every Spark task writes a file for each partition of its rows.

    Spark's own writer (`spark`) streams into uploads that stay open if the destination is on S3 and the
    session has hadoop-aws. Otherwise it writes to a directory that driver and executors share: with a local
    master, or if `staging` names one. Uploads of a Spark task's files begin when the task commits; the
    directory needs as much disk space as the data. On a file system it is hidden in the destination, and its
    files become the published ones without a copy. Where neither is possible, and with options that only the
    data source has, each task sends its rows to Python and streams them into uploads (`direct`). `auto` takes
    `spark` where it is possible.

    Args:
        df: Data frame to write.
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        mode: `append`; `replace` (Spark's `overwrite`): old data are removed when the new data are visible;
            `fail` (`error`, `errorifexists`): raise if there are data; `ignore`: do nothing if there are.
        scope: `destination`, or `partitions` to apply the mode only to folders that receive data (Spark's
            dynamic partition overwrite). The default for `replace` is the session's
            `spark.sql.sources.partitionOverwriteMode`, otherwise that of the committer.
        committer: Name of the committer; by default that of the settings, or `magic`.
        via: `auto`, `spark` or `direct`; the receipt has the way that was taken.
        staging: Directory that the driver and all executors share, for files of `spark` until they are
            uploaded, also where it could stream. By default a hidden one in the destination if that is on a
            file system, else one below `LOCKGATE_HOME`.
        partition_by: Columns that become folders, in this order; they are not stored in the files.
        sort_within_partitions: Sort each task's rows by the partition columns, so that few files are open.
            Pass False to keep the order of the rows, which needs `direct` if there are partitions.
        job_name: Name that is stable over retries of the same write, so that a retry finds its job;
            generated by default.
        description: Description for people, also in `_SUCCESS`.
        evolve_schema: Allow new columns, missing columns and wider types.
        tables: Table formats that the destination's turns are projected into from now on: `delta`, `iceberg`.
        compression: snappy, zstd, gzip, lz4 or none.
        options: More options of the data source: rowGroupRows, rowGroupBytes, maxOpenFiles,
            maxRecordsPerFile, partBytes. The first three need `direct`. Those with a dot, such as
            `parquet.bloom.filter.enabled#id`, are of Spark's own writer, and need `spark`.
        settings: Settings of this process, by default from its environment. Tasks read their environment.
        progress: Function that is called with step, done and total while the job uploads and commits.

    Returns:
        Receipt of the published job; None if the mode is `ignore` and there are data.

    Raises:
        InvalidInputError: A mode, an option, a column or the destination is invalid. Nothing was written.
        ConflictError: The destination has data and the mode is `fail`, or the columns do not fit.
        OutcomeUnknownError: It is unknown whether the job is decided; recovery resolves it.
        JobFailedError: The job ended without publishing anything.
        PySparkException: Spark or a task failed; the job is aborted and nothing is visible.
    """
    if mode not in _MODES:
        raise InvalidInputError(f"write: mode {mode!r} is not known; use one of {', '.join(_MODES)}")
    schema = check_columns(df.schema, partition_by)
    of_spark = {name: value for name, value in (options or {}).items() if "." in name}
    given = {
        "path": destination,
        "compression": compression,
        **{k: str(v) for k, v in (options or {}).items() if k not in of_spark},
    }
    checked = write_options(given, overwrite=False)
    if settings is None:
        settings = settings_for(checked)
    elif checked.part_bytes is not None:
        settings = msgspec.structs.replace(settings, part_bytes=checked.part_bytes)
    request = _Request(df, destination, given, of_spark, staging, sort_within_partitions or not partition_by)
    chosen, streams = request.way(via)
    if mode == "ignore" and _has_data(destination, settings):
        return None
    with open_job(
        destination,
        job_name or f"spark-{uuid4()}",
        mode=_MODES[mode],
        scope=scope or _session_scope(df, _MODES[mode]),
        committer=committer,
        columns=recorded_columns(schema, partition_by),
        evolve_schema=evolve_schema,
        tables=tables,
        staging=staging,
        description=description,
        settings=settings,
        progress=progress,
    ) as job:
        if job.receipt is not None:
            return _with_via(job.receipt, None)  # an earlier try with this name has already committed
        LOG.info("job %s at %s: rows go by %s", job.job_id, job.destination, chosen)
        if chosen == "direct":
            _save(df, job, partition_by, given, sort=sort_within_partitions)
            return _with_via(job.commit(), "direct")
        writer_options: dict[str, str | int | bool] = {
            "compression": _SPARKS_CODECS.get(compression, compression),
            "maxRecordsPerFile": checked.files.max_records_per_file,
            **of_spark,
        }
        winners = write_and_adopt(
            df,
            job,
            streams=streams,
            partition_by=partition_by,
            options=writer_options,
            settings=settings,
            progress=progress,
        )
        return _with_via(job.commit(winners=winners), "spark")


@dataclass(frozen=True)
class _Request:
    """What decides on the way of the rows."""

    df: DataFrame
    destination: str
    options: Mapping[str, str]
    of_spark: Mapping[str, str | int]
    staging: str | None
    sort: bool

    def way(self, via: str) -> tuple[Via, bool]:
        """Return the way that was asked for, or the first that is possible, and whether it streams.

        Raises:
            InvalidInputError: The way is not known, or not possible for this session or these options.
        """
        if via not in {"auto", *get_args(Via)}:
            raise InvalidInputError(
                f"write: via {via!r} is not known; use one of auto, {', '.join(get_args(Via))}"
            )
        if via == "direct":
            if self.staging is not None or self.of_spark:
                options = ", ".join(sorted(self.of_spark)) or "staging"
                raise InvalidInputError(
                    f"write: via='direct' does not go with {options}, which is of Spark's own writer; "
                    "nothing was written; use via='spark'"
                )
            return "direct", True
        obstacles: list[str] = []
        if self._is_on_s3 and self.staging is None:
            obstacles = [*self._options_of_direct(), *self._obstacles(streams=True)]
            if not obstacles:
                return "spark", True
        found = [*self._options_of_direct(), *self._obstacles(streams=False, is_asked=via != "auto")]
        if not found:
            return "spark", False
        reasons = ", nor with ".join(dict.fromkeys([*obstacles, *found]))
        if via == "spark":
            raise InvalidInputError(
                f"write: via='spark' does not go with {reasons}; nothing was written; use via='direct', or "
                "name a directory that all executors see: staging='/mnt/shared'"
            )
        _say_once(reasons)
        return "direct", True

    @property
    def _is_on_s3(self) -> bool:
        return parse_destination(self.destination).startswith("s3://")

    def _options_of_direct(self) -> Iterator[str]:
        if given := sorted(name for name in self.options if name.lower() in _OF_THE_DIRECT_WAY):
            yield f"the options {', '.join(given)}"
        if not self.sort:
            yield "sort_within_partitions=False"

    def _obstacles(self, *, streams: bool, is_asked: bool = True) -> Iterator[str]:
        """Yield why this session's own writer cannot write uploads, or files in a directory."""
        session = self.df.sparkSession
        if reason := obstacle(session, s3=streams):
            yield reason
        context = getattr(session, "sparkContext", None)  # Spark Connect has none
        is_local = context is not None and context.master.startswith("local")
        shares = is_local or self.staging is not None or (is_asked and not self._is_on_s3)
        if not streams and not shares:
            yield "a session whose executors may not see the driver's disk"


@lru_cache
def _say_once(reason: str) -> None:
    LOG.info("write: via='auto' does not take 'spark', which does not go with %s", reason)


def _with_via(receipt: Receipt, via: Via | None) -> WriteReceipt:
    return WriteReceipt(**msgspec.structs.asdict(receipt), via=via)


def _session_scope(df: DataFrame, mode: str) -> ScopeName | None:
    """Return the scope that the session's setting requests, or None."""
    dynamic = df.sparkSession.conf.get("spark.sql.sources.partitionOverwriteMode", "static") or "static"
    return "partitions" if mode == "replace" and dynamic.lower() == "dynamic" else None


def _save(
    df: DataFrame, job: Job, partition_by: Sequence[str], options: Mapping[str, str], *, sort: bool
) -> None:
    """Write and commit the tasks; the caller, which holds the lease, commits the job."""
    register(df.sparkSession)
    rows = (
        df.sortWithinPartitions(*(col(quoted(name)) for name in partition_by))
        if sort and partition_by
        else df
    )
    writer = rows.write.format("lockgate").mode("append").options(**options)
    writer = writer.option("partitionBy", json.dumps(list(partition_by))) if partition_by else writer
    address = {"jobId": job.job_id, "jobAttempt": job.job_attempt, "commit": "task"}
    writer.options(**address).option("path", job.destination).save()


def _has_data(destination: str, settings: Settings | None) -> bool:
    if read_manifest(destination, settings=settings).files:
        return True
    return next(visible_files(open_store(destination, settings)), None) is not None
