"""One task of a job, written by a library, in two lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage_core.commit import Job
from storage_core.fsspec.filesystem import LockgateFileSystem


@contextmanager
def job_filesystem(job: Job, task_id: str) -> Iterator[tuple[LockgateFileSystem, str]]:
    """Write one task of a job by path: the task commits at the block's end, or is aborted by an exception.

        with job_filesystem(job, "part-0") as (fs, root):
            frame.to_parquet(f"{root}/day=1/a.parquet", filesystem=fs)

    Args:
        job: Opened or attached to by this process.
        task_id: The same for every try at this part.

    Yields:
        A file system of the task's own, and the directory to write below. For a library that takes URLs
        only, the directory is `fs.unstrip_protocol(root)`.

    Raises:
        ConflictError: The job is decided or has ended.
        FencedError: The job's driver was replaced; the task has not committed.
        OutcomeUnknownError: It is not known whether the task has committed; `fs.commit_task(root)` again.
    """
    fs = LockgateFileSystem(skip_instance_cache=True)
    root = fs.begin_task(job, task_id)
    try:
        yield fs, root
    except BaseException:
        fs.abort_task(root)
        raise
    fs.commit_task(root)
