"""Commit one staged task: upload its files as pending uploads."""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.job_events import acting_as
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, StagedFile
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.commit.records.shards import total_rows
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.commit.uploads.parquet_footer import rows_of_file
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import ConflictError, InvalidInputError, MalformedRecordError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, JobId, TaskId
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.protocol import check_key

FILES_AT_ONCE: Final = 8
"""Concurrent uploads of a task; each holds at most three parts in memory."""

logger = logging.getLogger(__name__)
BLOCK_BYTES: Final = 1024 * 1024


def commit_staged_task(destination: str, job_id: str, job_attempt: str, task_id: str) -> dict[str, Any]:
    """Commit one task of a job attempt and return its row.

    It may run any number of times, also concurrently: a committed task is not committed again, and if two
    attempts commit, the plan takes one of them; the other's uploads are aborted at the job's end.

    Raises:
        InvalidInputError: The job attempt has no such task, or its staging directory does not exist here, or
            this worker may not read it.
        ConflictError: The job is decided, or a staged file does not match the frozen listing.
        StoreUnavailableError: The store is unavailable; nothing of this attempt is left.
        OutcomeUnknownError: It is not known whether the task is committed; run it again to find out.
    """
    settings = load_settings()
    job = attach_job(destination, JobId(job_id), job_attempt=JobAttemptId(job_attempt), settings=settings)
    task, staging = _expected(job, TaskId(task_id))
    _check_root(staging, settings.staging_roots)
    committed = _find_committed(job, task)
    if committed is None:
        with (
            acting_as("worker"),
            job.attempt(task.task_id, input_digest=task.input_digest) as attempt,
            step("task-write"),
        ):
            for _ in in_parallel(partial(_add, attempt, staging), task.files, FILES_AT_ONCE):
                pass
        committed = attempt.commit()  # the block has committed it: this returns the pending set
    return _row(committed)


def _expected(job: Job, task_id: TaskId) -> tuple[ExpectedTask, Path]:
    expected = job.expected()
    if expected is None:
        raise ConflictError(
            f"job {job.job_id} attempt {job.job_attempt}: the job is {job.phase()} and has no list of "
            "expected tasks; nothing was uploaded; call `Job.expect` before the task commits and before the "
            "job's end"
        )
    task = next((task for task in expected.tasks if task.task_id == task_id), None)
    if task is None or expected.staging is None:
        raise InvalidInputError(
            f"job {job.job_id} attempt {job.job_attempt} expects no staged task {task_id!r}; "
            "nothing was uploaded"
        )
    return task, Path(expected.staging)


def _check_root(staging: Path, roots: Collection[Path]) -> None:
    """Refuse a directory outside the roots: its name comes from the store, which others may write."""
    if roots and not any(staging.resolve().is_relative_to(root.resolve()) for root in roots):
        raise InvalidInputError(
            f"staging directory {staging} is in none of LOCKGATE_STAGING_ROOTS; nothing was read; "
            "stage below one of them, or add the directory on this worker"
        )


def _find_committed(job: Job, task: ExpectedTask) -> PendingSet | None:
    """Return the pending set of an earlier delivery of the same message."""
    for pending in job.pending_sets(task.task_id):
        if pending.input_digest == task.input_digest:
            logger.info("task %s of job %s is already committed", task.task_id, job.job_id)
            return pending
    return None


def _add(attempt: Attempt, staging: Path, file: StagedFile) -> None:
    local = staging / check_key(file.path)
    if not local.resolve().is_relative_to(staging.resolve()):
        raise InvalidInputError(
            f"staged file {local} leads out of its staging directory; nothing was uploaded"
        )
    attempt.add_file(local, file.path, rows=_rows(local), expected_size=file.size, adopt=True)


def _rows(local: Path) -> int | None:
    try:
        return count_rows(local)
    except FileNotFoundError:
        return None  # `add_file` opens it next, and raises the error


def _row(committed: PendingSet) -> dict[str, Any]:
    return {
        "task_id": committed.task_id,
        "attempt_id": committed.attempt_id,
        "files": len(committed.files),
        "rows": total_rows(file.rows for file in committed.files),
        "size": sum(file.upload.size for file in committed.files),
    }


def count_rows(path: Path) -> int | None:
    """Return the number of rows of a file, by the format of its suffix; None if it is not known.

    Parquet and ORC have it in their footers; a JSON-lines file (`.json`, `.jsonl`, `.ndjson`, also with
    `.gz`) has one row in each line. The rows of a CSV file are not known: its first line may be a header, and
    a line break within quotes may not end a row.

    Raises:
        MalformedRecordError: The file does not have the format of its suffix.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    try:
        match suffixes:
            case [*_, ".parquet"]:
                return rows_of_file(path)
            case [*_, ".orc"]:
                return _orc_rows(path)
            case [*_, ".json" | ".jsonl" | ".ndjson"]:
                with path.open("rb") as file:
                    return _json_rows(file)
            case [*_, ".json" | ".jsonl" | ".ndjson", ".gz"]:
                with gzip.open(path) as packed:
                    return _json_rows(cast("BinaryIO", packed))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk failed; the content may be valid
        raise MalformedRecordError(
            f"staged file {path} is not a complete {suffixes[-1]} file ({error}); nothing of it was "
            "uploaded; stage the data again"
        ) from error
    return None


def _orc_rows(path: Path) -> int:
    from pyarrow import orc

    return int(orc.ORCFile(path).nrows)


def _json_rows(file: BinaryIO) -> int | None:
    """Count the lines; None if the first is not a JSON object, as in a file that is one document."""
    first = file.readline(BLOCK_BYTES)
    if not first:
        return 0
    try:
        if not isinstance(json.loads(first), dict):
            return None
    except json.JSONDecodeError:
        return None
    rows, last = 1, b"\n"
    while block := file.read(BLOCK_BYTES):
        rows += block.count(b"\n")
        last = block[-1:]
    return rows + (last != b"\n")
