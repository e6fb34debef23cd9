"""One task of a job, written by a library, in two lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockgate.storage_core.commit import Job
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem


@contextmanager
def job_filesystem(
    job: Job, task_id: str, *, allow_empty: bool = False
) -> Iterator[tuple[LockgateFileSystem, str]]:
    """Write one task of a job by path: the task commits at the block's end, or is aborted by an exception.

        with job_filesystem(job, "part-0") as (fs, root):
            frame.to_parquet(f"{root}/day=1/a.parquet", filesystem=fs)

    Args:
        job: Opened or attached to by this process.
        task_id: The same for every try at this part.
        allow_empty: Whether a task for which the file system opened no file commits, too. By default that is
            refused: its files were perhaps written through another, and would be left out.

    Yields:
        A file system of the task's own, and the directory to write below. For a library that takes URLs
        only, the directory is `fs.unstrip_protocol(root)`.

    Raises:
        ConflictError: The job is decided or has ended, or nothing was written through the file system.
        FencedError: The job's driver was replaced; the task has not committed.
        OutcomeUnknownError: It is not known whether the task has committed; `fs.commit_task(root)` again.
    """
    fs = LockgateFileSystem()
    root = fs.begin_task(job, task_id)
    try:
        yield fs, root
        fs.commit_task(root, allow_empty=allow_empty)
    except BaseException:
        fs.abort_task(root)  # unless it may have committed
        raise
