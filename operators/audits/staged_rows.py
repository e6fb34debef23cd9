"""Check that the staged files are the committed ones, and validate their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.operators.audits.suites import Suite, Validation, validate
from lockgate.storage_core.errors import AuditFailedError, MissingPartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.records.pending_set import PendingSet
    from lockgate.storage_core.commit.records.task import ExpectedTasks


@dataclass(frozen=True)
class StagedRows:
    """The frozen listing of one job attempt, checked against the disk and the pending sets.

    Attributes:
        root: The staging directory.
        paths: Paths of its files, relative to the root.
        rows: Rows that the workers counted; None if they could not count them.
    """

    root: Path
    paths: Sequence[str]
    rows: int | None

    def files(self) -> list[str]:
        """Return the absolute paths."""
        return [str(self.root / path) for path in self.paths]


def staged_rows(job: Job) -> StagedRows:
    """Return the staged files that the audit must read.

    Raises:
        AuditFailedError: The files on disk are not the committed ones, so a verdict on them would not apply.
    """
    expected = job.expected()
    if expected is None or expected.staging is None:
        raise AuditFailedError(
            f"job {job.job_id}, attempt {job.job_attempt}: there is no frozen list of staged files to audit; "
            "run SparkWriteOperator and TaskCommitOperator first, and pass the job handle of the former"
        )
    root = Path(expected.staging)
    frozen = {file.path: file.size for task in expected.tasks for file in task.files}
    _check_disk(job, root, frozen)
    return StagedRows(root, sorted(frozen), _check_pending(job, expected, frozen))


def _check_disk(job: Job, root: Path, frozen: Mapping[str, int]) -> None:
    for path, size in frozen.items():
        try:
            found = (root / path).stat().st_size
        except OSError as error:
            raise AuditFailedError(
                f"job {job.job_id}: staged file {path} cannot be read: {error}; no verdict"
            ) from error
        if found != size:
            raise AuditFailedError(
                f"job {job.job_id}: staged file {path} has {found} bytes, but {size} in the frozen listing; "
                "no verdict"
            )


def _check_pending(job: Job, expected: ExpectedTasks, frozen: Mapping[str, int]) -> int | None:
    chosen: dict[str, PendingSet] = {}
    for pending in job.pending_sets():
        chosen[pending.task_id] = pending
        for file in pending.files:
            if frozen.get(file.path) != file.upload.size:
                raise AuditFailedError(
                    f"job {job.job_id}, task {pending.task_id}: pending file {file.path} has "
                    f"{file.upload.size} bytes, but {frozen.get(file.path)} were staged; no verdict"
                )
    missing = [task.task_id for task in expected.tasks if task.task_id not in chosen]
    if missing:
        raise AuditFailedError(
            f"job {job.job_id}: {len(missing)} tasks are not committed yet, for example {missing[0]}; "
            "run the audit after TaskCommitOperator"
        )
    counts = [file.rows for pending in chosen.values() for file in pending.files]
    return None if None in counts else sum(count or 0 for count in counts)


def validate_in_pandas(
    staged: StagedRows,
    suite: Suite,
    *,
    format: str,  # noqa: A002 - as Spark calls it
    columns: Sequence[str] | None,
) -> Validation:
    """Read the staged rows into memory and validate them.

    Args:
        staged: Files to read.
        suite: Expectations on their rows.
        format: `parquet`, `orc`, `json` (lines) or `csv` (with a header).
        columns: Columns to read; None: all.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - slow
        import pyarrow.dataset as ds  # noqa: PLC0415
    except ImportError as error:
        raise MissingPartError(
            f"an audit in pandas needs pyarrow: pip install 'lockgate[spark]' ({error})"
        ) from error
    if not staged.paths:
        table = pa.table({})
    else:
        hive = ds.HivePartitioning.discover(infer_dictionary=False)
        dataset = ds.dataset(
            staged.files(), format=format, partitioning=hive, partition_base_dir=str(staged.root)
        )
        table = dataset.to_table(columns=list(columns) if columns else None)
    return validate(table.to_pandas(), suite, rows=table.num_rows)


def validate_in_spark(
    spark: SparkSession,
    *,
    root: str,
    files: Sequence[str],
    suite: Suite,
    format: str,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str],
) -> dict[str, Any]:
    """Validate the staged rows in the Spark child; they need not fit into memory."""
    frame = spark.read.format(format).options(**{"basePath": root, **options}).load(list(files))
    return dict(validate(frame, suite, rows=frame.count()))
