"""Read and write destinations by path, from pandas, Polars, PyArrow and DuckDB.

    from lockgate import open_job
    from lockgate.fsspec import job_filesystem

    with open_job("s3://lake/sales", "sales-2026-11-21") as job:
        with job_filesystem(job, "part-0") as (fs, root):
            frame.to_parquet(f"{root}/day=1/a.parquet", filesystem=fs)
        job.commit()

Importing this module needs fsspec (`pip install 'lockgate[fsspec]'`).
"""

from lockgate.storage_core.fsspec.appendable import AppendableFileSystem
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem, job_filesystem

__all__ = ["AppendableFileSystem", "LockgateFileSystem", "job_filesystem"]
