"""Lockgate: job output that appears all at once, or not at all.

from storage_core import open_job

with open_job("s3://lake/sales", "sales-2026-11-21") as job:
    with job.attempt("part-0") as attempt, attempt.open("day=1/a.csv") as file:
        file.write(b"...")
    receipt = job.commit()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockgate.storage_core.commit import attach_job, open_job, read_manifest, recover_job, sweep_uploads

__all__ = ["attach_job", "open_job", "read_manifest", "recover_job", "sweep_uploads"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lockgate.storage_core import commit  # noqa: PLC0415 - 0.4 s, which `lockgate --help` and DAG files need not wait

    return getattr(commit, name)
