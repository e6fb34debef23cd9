"""Lockgate: job output that appears all at once, or not at all.

from lockgate import open_job

with open_job("s3://lake/sales", "sales-2026-11-21") as job:
    with job.attempt("part-0") as attempt, attempt.open("day=1/a.csv") as file:
        file.write(b"...")
    receipt = job.commit()

The names of `__all__` are public. They are imported at their first use: a DAG file can afford
`import lockgate`. Further public modules: `lockgate.spark`, `lockgate.fsspec`, `lockgate.operators`,
`lockgate.workers`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockgate.storage_core.commit.destination.log import Manifest
    from lockgate.storage_core.commit.destination.manifest import read_changes, read_live, read_manifest
    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.job_summary import list_jobs
    from lockgate.storage_core.commit.open_or_attach import attach_job, open_job
    from lockgate.storage_core.commit.records.log_records import Receipt
    from lockgate.storage_core.commit.records.phase import JobPhase
    from lockgate.storage_core.commit.recovery.recover import recover_job
    from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
    from lockgate.storage_core.compaction.compact import compact
    from lockgate.storage_core.errors import FencedError, LockgateError, NotAppliedError, OutcomeUnknownError
    from lockgate.storage_core.satellite.open_overlay import open_files
    from lockgate.storage_core.settings import Settings, load_settings

__all__ = [
    "FencedError",
    "Job",
    "JobPhase",
    "LockgateError",
    "Manifest",
    "NotAppliedError",
    "OutcomeUnknownError",
    "Receipt",
    "Settings",
    "attach_job",
    "compact",
    "list_jobs",
    "load_settings",
    "open_files",
    "open_job",
    "read_changes",
    "read_live",
    "read_manifest",
    "recover_job",
    "sweep_uploads",
]

_MODULES: Final = {
    "commit.destination.log": ("Manifest",),
    "commit.destination.manifest": ("read_changes", "read_live", "read_manifest"),
    "commit.job": ("Job",),
    "commit.job_summary": ("list_jobs",),
    "commit.open_or_attach": ("attach_job", "open_job"),
    "commit.records.log_records": ("Receipt",),
    "commit.records.phase": ("JobPhase",),
    "commit.recovery.upload_sweep": ("sweep_uploads",),
    "commit.recovery.recover": ("recover_job",),
    "compaction.compact": ("compact",),
    "errors": ("FencedError", "LockgateError", "NotAppliedError", "OutcomeUnknownError"),
    "satellite.open_overlay": ("open_files",),
    "settings": ("Settings", "load_settings"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"lockgate.storage_core.{_MODULE_OF[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
