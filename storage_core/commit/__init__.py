"""The commit protocol: jobs, attempts, pending sets, turn, plan, decision, outcome, log, recovery, sweep."""

from lockgate.storage_core.commit.destination.live_read import read_live
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest, read_manifest
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.job_summary import JobSummary, list_jobs
from lockgate.storage_core.commit.leases.protocol import JobLeaseState
from lockgate.storage_core.commit.open_job import attach_job, open_job
from lockgate.storage_core.commit.publish.shard_completion import (
    ShardCompleter,
    ShardReport,
    complete_shard_of,
)
from lockgate.storage_core.commit.records.job import Column, JobSpec
from lockgate.storage_core.commit.records.log_entries import LiveFile, Receipt
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.task import (
    AuditVerdict,
    ColumnStatistics,
    ExpectedTask,
    ExpectedTasks,
    PendingFile,
    PendingSet,
    StagedFile,
)
from lockgate.storage_core.commit.recovery.orphan_sweep import SweepReport, sweep_uploads
from lockgate.storage_core.commit.recovery.recover import (
    RecoveryAction,
    RecoveryResult,
    recover_all,
    recover_job,
)
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
