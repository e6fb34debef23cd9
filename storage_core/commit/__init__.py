"""The commit protocol: jobs, task attempts, the job commit, recovery and the sweep of orphaned uploads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockgate.storage_core.commit.destination.live_read import read_live
    from lockgate.storage_core.commit.destination.log import DestinationLog, read_manifest
    from lockgate.storage_core.commit.destination.manifest import Manifest
    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.job_summary import JobSummary, list_jobs
    from lockgate.storage_core.commit.leases.protocol import JobLeaseState
    from lockgate.storage_core.commit.open_or_attach import attach_job, open_job
    from lockgate.storage_core.commit.publish.shard_completion import (
        ShardCompleter,
        ShardReport,
        complete_shard_of,
    )
    from lockgate.storage_core.commit.records.destination_log.live_files import LiveFile
    from lockgate.storage_core.commit.records.destination_log.outcome import Receipt
    from lockgate.storage_core.commit.records.job import Column, JobSpec
    from lockgate.storage_core.commit.records.pending_set import ColumnStatistics, PendingFile, PendingSet
    from lockgate.storage_core.commit.records.phase import JobPhase
    from lockgate.storage_core.commit.records.task import (
        AuditVerdict,
        ExpectedTask,
        ExpectedTasks,
        StagedFile,
    )
    from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
    from lockgate.storage_core.commit.recovery.recover import RecoveryResult, recover_all, recover_job
    from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport, sweep_uploads
    from lockgate.storage_core.commit.task.attempt import Attempt
    from lockgate.storage_core.commit.uploads.pending_file import PendingFileWriter
    from lockgate.storage_core.commit.uploads.upload_cost import UploadTotals
    from lockgate.storage_core.commit.uploads.upload_owner import (
        SweepAction,
        UploadFate,
        UploadFilter,
        count_uploads,
    )
    from lockgate.storage_core.concurrency import Progress

__all__ = [
    "Attempt",
    "AuditVerdict",
    "Column",
    "ColumnStatistics",
    "DestinationLog",
    "ExpectedTask",
    "ExpectedTasks",
    "Job",
    "JobLeaseState",
    "JobPhase",
    "JobSpec",
    "JobSummary",
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
    "UploadFilter",
    "UploadTotals",
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
    "Attempt": "lockgate.storage_core.commit.task.attempt",
    "AuditVerdict": "lockgate.storage_core.commit.records.task",
    "Column": "lockgate.storage_core.commit.records.job",
    "ColumnStatistics": "lockgate.storage_core.commit.records.pending_set",
    "DestinationLog": "lockgate.storage_core.commit.destination.log",
    "ExpectedTask": "lockgate.storage_core.commit.records.task",
    "ExpectedTasks": "lockgate.storage_core.commit.records.task",
    "Job": "lockgate.storage_core.commit.job",
    "JobPhase": "lockgate.storage_core.commit.records.phase",
    "JobSpec": "lockgate.storage_core.commit.records.job",
    "JobSummary": "lockgate.storage_core.commit.job_summary",
    "JobLeaseState": "lockgate.storage_core.commit.leases.protocol",
    "LiveFile": "lockgate.storage_core.commit.records.destination_log.live_files",
    "Manifest": "lockgate.storage_core.commit.destination.manifest",
    "PendingFile": "lockgate.storage_core.commit.records.pending_set",
    "PendingFileWriter": "lockgate.storage_core.commit.uploads.pending_file",
    "PendingSet": "lockgate.storage_core.commit.records.pending_set",
    "Progress": "lockgate.storage_core.concurrency",
    "Receipt": "lockgate.storage_core.commit.records.destination_log.outcome",
    "RecoveryAction": "lockgate.storage_core.commit.recovery.decision_table",
    "RecoveryResult": "lockgate.storage_core.commit.recovery.recover",
    "ShardCompleter": "lockgate.storage_core.commit.publish.shard_completion",
    "ShardReport": "lockgate.storage_core.commit.publish.shard_completion",
    "StagedFile": "lockgate.storage_core.commit.records.task",
    "SweepAction": "lockgate.storage_core.commit.uploads.upload_owner",
    "SweepReport": "lockgate.storage_core.commit.recovery.upload_sweep",
    "UploadFate": "lockgate.storage_core.commit.uploads.upload_owner",
    "UploadTotals": "lockgate.storage_core.commit.uploads.upload_cost",
    "UploadFilter": "lockgate.storage_core.commit.uploads.upload_owner",
    "attach_job": "lockgate.storage_core.commit.open_or_attach",
    "complete_shard_of": "lockgate.storage_core.commit.publish.shard_completion",
    "count_uploads": "lockgate.storage_core.commit.uploads.upload_owner",
    "list_jobs": "lockgate.storage_core.commit.job_summary",
    "open_job": "lockgate.storage_core.commit.open_or_attach",
    "read_live": "lockgate.storage_core.commit.destination.live_read",
    "read_manifest": "lockgate.storage_core.commit.destination.log",
    "recover_all": "lockgate.storage_core.commit.recovery.recover",
    "recover_job": "lockgate.storage_core.commit.recovery.recover",
    "sweep_uploads": "lockgate.storage_core.commit.recovery.upload_sweep",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing `registry` stays cheap."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
