"""The commit protocol: jobs, attempts, pending sets, turn, plan, decision, outcome, log, recovery, sweep."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from storage_core.commit.attempt import Attempt
    from storage_core.commit.completion import ShardCompleter, ShardReport, complete_shard_of
    from storage_core.commit.job import Job
    from storage_core.commit.lease import LeaseState
    from storage_core.commit.log import DestinationLog, Manifest, read_manifest
    from storage_core.commit.opening import attach_job, open_job
    from storage_core.commit.orphans import SweepAction, UploadFate, UploadFilter, count_uploads
    from storage_core.commit.phase import JobPhase
    from storage_core.commit.reading import read_live
    from storage_core.commit.records import (
        AuditVerdict,
        Column,
        ColumnStatistics,
        ExpectedTask,
        ExpectedTasks,
        JobSpec,
        LiveFile,
        PendingFile,
        PendingSet,
        Receipt,
        StagedFile,
    )
    from storage_core.commit.recovery import RecoveryAction, RecoveryResult, recover_all, recover_job
    from storage_core.commit.summary import JobSummary, list_jobs
    from storage_core.commit.sweep import SweepReport, sweep_uploads
    from storage_core.commit.upload_cost import UploadFigures
    from storage_core.commit.writer import PendingFileWriter
    from storage_core.parallel import Progress

__all__ = [
    "Attempt",
    "AuditVerdict",
    "Column",
    "ColumnStatistics",
    "DestinationLog",
    "ExpectedTask",
    "ExpectedTasks",
    "Job",
    "JobPhase",
    "JobSpec",
    "JobSummary",
    "LeaseState",
    "LiveFile",
    "Manifest",
    "PendingFile",
    "PendingFileWriter",
    "PendingSet",
    "Progress",
    "Receipt",
    "RecoveryAction",
    "RecoveryResult",
    "ShardCompleter",
    "ShardReport",
    "StagedFile",
    "SweepAction",
    "SweepReport",
    "UploadFate",
    "UploadFigures",
    "UploadFilter",
    "attach_job",
    "complete_shard_of",
    "count_uploads",
    "list_jobs",
    "open_job",
    "read_live",
    "read_manifest",
    "recover_all",
    "recover_job",
    "sweep_uploads",
]

_MODULES: Final = {
    "Attempt": "storage_core.commit.attempt",
    "AuditVerdict": "storage_core.commit.records",
    "Column": "storage_core.commit.records",
    "ColumnStatistics": "storage_core.commit.records",
    "DestinationLog": "storage_core.commit.log",
    "ExpectedTask": "storage_core.commit.records",
    "ExpectedTasks": "storage_core.commit.records",
    "Job": "storage_core.commit.job",
    "JobPhase": "storage_core.commit.phase",
    "JobSpec": "storage_core.commit.records",
    "JobSummary": "storage_core.commit.summary",
    "LeaseState": "storage_core.commit.lease",
    "LiveFile": "storage_core.commit.records",
    "Manifest": "storage_core.commit.log",
    "PendingFile": "storage_core.commit.records",
    "PendingFileWriter": "storage_core.commit.writer",
    "PendingSet": "storage_core.commit.records",
    "Progress": "storage_core.parallel",
    "Receipt": "storage_core.commit.records",
    "RecoveryAction": "storage_core.commit.recovery",
    "RecoveryResult": "storage_core.commit.recovery",
    "ShardCompleter": "storage_core.commit.completion",
    "ShardReport": "storage_core.commit.completion",
    "StagedFile": "storage_core.commit.records",
    "SweepAction": "storage_core.commit.orphans",
    "SweepReport": "storage_core.commit.sweep",
    "UploadFate": "storage_core.commit.orphans",
    "UploadFigures": "storage_core.commit.upload_cost",
    "UploadFilter": "storage_core.commit.orphans",
    "attach_job": "storage_core.commit.opening",
    "complete_shard_of": "storage_core.commit.completion",
    "count_uploads": "storage_core.commit.orphans",
    "list_jobs": "storage_core.commit.summary",
    "open_job": "storage_core.commit.opening",
    "read_live": "storage_core.commit.reading",
    "read_manifest": "storage_core.commit.log",
    "recover_all": "storage_core.commit.recovery",
    "recover_job": "storage_core.commit.recovery",
    "sweep_uploads": "storage_core.commit.sweep",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing `registry` stays cheap."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
