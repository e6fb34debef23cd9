"""Write one task of a job through a file system, in two lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem


@contextmanager
def job_filesystem(
    job: Job, task_id: str, *, allow_empty: bool = False, try_number: int = 0
) -> Iterator[tuple[LockgateFileSystem, str]]:
    """Write one task of a job by path. The task commits at the end of the block; an exception aborts it.

        with job_filesystem(job, "part-0") as (fs, root):
            frame.to_parquet(f"{root}/day=1/a.parquet", filesystem=fs)

    Args:
        job: Job that this process has opened or attached to.
        task_id: Id of the task, the same in every retry.
        allow_empty: Whether to commit a task for which the file system opened no file. By default it is
            refused: its files may have been written through another file system, and would be missing.
        try_number: Number of the try, such as Airflow's `ti.try_number`; see `Job.attempt`.

    Yields:
        A file system for the task, and the directory to write below. For a library that accepts only URLs,
        the directory is `fs.unstrip_protocol(root)`.

    Raises:
        ConflictError: The job is decided or has ended, or nothing was written through the file system.
        FencedError: The job's driver was replaced; the task has not committed.
        OutcomeUnknownError: The task may have committed; call `fs.commit_task(root)` again.
    """
    fs = LockgateFileSystem()
    root = fs.begin_task(job, task_id, try_number=try_number)
    try:
        yield fs, root
        fs.commit_task(root, allow_empty=allow_empty)
    except BaseException:
        fs.abort_task(root)  # unless it may have committed
        raise
