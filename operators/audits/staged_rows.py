"""Check that the staged files are the committed ones, and validate their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockgate.operators.audits.suites import Suite, validate
from lockgate.operators.audits.validation import Validation
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import AuditFailedError, ConflictError, InvalidInputError, MissingPartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.records.pending_set import PendingFile, PendingSet

_OTHER_FORMAT: Final = ("CANNOT_READ_FILE_FOOTER", "UNABLE_TO_INFER_SCHEMA", "is not a Parquet file")
"""Texts of Spark's errors for files of another format."""
FILES_AT_ONCE: Final = 4
"""Files whose checksums are computed at a time."""


@dataclass(frozen=True)
class StagedRows:
    """The frozen listing of one job attempt, checked against the disk and the chosen pending sets.

    Attributes:
        root: The staging directory.
        sha256: SHA-256 of every file as it was uploaded, by path relative to the root.
        rows: Rows that the workers counted; None if they could not count them.
        chosen: Digest of the pending sets.
        seen: What the disk said of each file before anything was read.
    """

    root: Path
    sha256: Mapping[str, str | None]
    rows: int | None
    chosen: str
    seen: Mapping[str, FileState]

    @property
    def paths(self) -> list[str]:
        """Paths of the files, relative to the root."""
        return sorted(self.sha256)

    def files(self) -> list[str]:
        """Return the absolute paths."""
        return [str(self.root / path) for path in self.paths]

    def check_read(self, job: Job) -> None:
        """Check that what was read since `staged_rows` are the bytes that the workers uploaded.

        A file is read once more for its checksum; its inode and times show a change and its reversal.

        Raises:
            AuditFailedError: A file has other bytes; a verdict on it would not apply.
            ConflictError: A file changed meanwhile, and back; another audit may succeed.
        """

        def check(path: str) -> None:
            file = self.root / path
            try:
                found = _sha256(file)
                state = _state(file)
            except OSError as error:
                raise _unreadable(job, path, error) from error
            uploaded = self.sha256[path]
            if uploaded is None:
                raise AuditFailedError(
                    f"job {job.job_id}: no checksum of pending file {path} was recorded, so it cannot be "
                    "compared with the staged file; no verdict; set the job up with audit=True"
                )
            if found != uploaded:
                raise AuditFailedError(
                    f"job {job.job_id}: staged file {path} does not have the bytes that the workers "
                    "uploaded, which the commit would publish; no verdict; clear the run from its write task"
                )
            if state != self.seen[path]:
                raise ConflictError(
                    f"job {job.job_id}: staged file {path} changed while the audit read it; no verdict; "
                    "run the audit again; if it changes again, find out what writes there"
                )

        for _ in in_parallel(check, self.paths, FILES_AT_ONCE):
            pass


class FileState(NamedTuple):
    """Size, inode and times of a file."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int


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
    seen = _check_disk(job, root, frozen)
    try:
        digest, pending = job.chosen_pending_sets()
    except ConflictError as error:
        raise AuditFailedError(f"{error}; no verdict; run the audit after TaskCommitOperator") from error
    files = _check_pending(job, pending, frozen)
    counts = [file.rows for file in files]
    return StagedRows(
        root,
        {file.path: file.sha256 for file in files},
        None if None in counts else sum(count or 0 for count in counts),
        digest,
        seen,
    )


def _check_disk(job: Job, root: Path, frozen: Mapping[str, int]) -> dict[str, FileState]:
    seen: dict[str, FileState] = {}
    for path, size in frozen.items():
        try:
            seen[path] = _state(root / path)
        except OSError as error:
            raise _unreadable(job, path, error) from error
        if seen[path].size != size:
            raise AuditFailedError(
                f"job {job.job_id}: staged file {path} has {seen[path].size} bytes, but {size} in the frozen "
                "listing; no verdict"
            )
    return seen


def _state(file: Path) -> FileState:
    found = file.stat()
    return FileState(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _unreadable(job: Job, path: str, error: OSError) -> AuditFailedError:
    return AuditFailedError(f"job {job.job_id}: staged file {path} cannot be read: {error}; no verdict")


def _check_pending(job: Job, chosen: Sequence[PendingSet], frozen: Mapping[str, int]) -> list[PendingFile]:
    files = [file for pending in chosen for file in pending.files]
    for file in files:
        if frozen.get(file.path) != file.upload.size:
            raise AuditFailedError(
                f"job {job.job_id}: pending file {file.path} has {file.upload.size} bytes, but "
                f"{frozen.get(file.path)} were staged; no verdict"
            )
    lost = frozen.keys() - {file.path for file in files}
    if lost:
        raise AuditFailedError(
            f"job {job.job_id}: {len(lost)} staged files are in no pending set, for example {min(lost)}; "
            "no verdict; clear the run from its write task"
        )
    return files


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

    Raises:
        InvalidInputError: The files have another format or no such column, or see `validate`.
    """
    try:
        import pyarrow as pa
        import pyarrow.dataset as ds
    except ImportError as error:
        raise MissingPartError(
            f"an audit in pandas needs pyarrow: pip install 'lockgate[spark]' ({error})"
        ) from error
    if not staged.paths:
        table = pa.table({})
    else:
        hive = ds.HivePartitioning.discover(infer_dictionary=False)
        try:
            dataset = ds.dataset(
                staged.files(), format=format, partitioning=hive, partition_base_dir=str(staged.root)
            )
            table = dataset.to_table(columns=list(columns) if columns else None)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise _unreadable_as(format, error) from error
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
    """Validate the staged rows in the Spark child; they need not fit into memory.

    Raises:
        InvalidInputError: The files have another format, or see `validate`.
    """
    try:
        frame = spark.read.format(format).options(**{"basePath": root, **options}).load(list(files))
        rows = frame.count()
    except Exception as error:
        if any(condition in str(error) for condition in _OTHER_FORMAT):
            raise _unreadable_as(format, error) from None
        raise  # Spark failed: a retry may succeed
    return dict(validate(frame, suite, rows=rows))


def _unreadable_as(format: str, error: Exception) -> InvalidInputError:  # noqa: A002 - as Spark calls it
    return InvalidInputError(
        f"the staged files cannot be read as {format}: {' '.join(str(error).split())[:400]}; no verdict; "
        "correct the audit's `format`, `columns` or `options`, and clear the audit task: the data need not "
        "be written again"
    )
