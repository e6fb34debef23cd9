"""The commit protocol: jobs, attempts, pending sets, turn, plan, decision, outcome, log, recovery, sweep."""

from storage_core.commit.attempt import Attempt
from storage_core.commit.completion import ShardCompleter, ShardReport, complete_shard_of
from storage_core.commit.job import Job
from storage_core.commit.lease import JobLeaseState
from storage_core.commit.log import DestinationLog, Manifest, read_manifest
from storage_core.commit.opening import attach_job, open_job
from storage_core.commit.orphans import SweepAction, UploadFate, UploadFilter, count_uploads
from storage_core.commit.phase import JobPhase
from storage_core.commit.reading import read_live
from storage_core.commit.records.job import Column, JobSpec
from storage_core.commit.records.log_entries import LiveFile, Receipt
from storage_core.commit.records.task import (
    AuditVerdict,
    ColumnStatistics,
    ExpectedTask,
    ExpectedTasks,
    PendingFile,
    PendingSet,
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
