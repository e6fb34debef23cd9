"""The fsspec file system, for libraries that write and read by path.

    from lockgate import open_job
    from lockgate.fsspec import job_filesystem

    with open_job("s3://lake/sales", "sales-2026-11-21") as job:
        with job_filesystem(job, "part-0") as (fs, root):
            frame.to_parquet(f"{root}/day=1/a.parquet", filesystem=fs)
        job.commit()

Files written below `root` are pending files of one attempt of the task. Any other path is read from the
destination's log: complete jobs only. `docs/guides/fsspec.md` has an example for each library.
"""

from lockgate.storage_core.errors import MissingPartError

try:
    import fsspec as _fsspec  # type: ignore[import-untyped]  # noqa: F401 - only asked for
except ImportError as error:
    raise MissingPartError(
        f"lockgate.fsspec needs {error.name}, which is not installed; pip install 'lockgate[fsspec]'"
    ) from error

from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem
from lockgate.storage_core.fsspec.session import job_filesystem

__all__ = ["LockgateFileSystem", "job_filesystem"]
