"""Airflow operators over `storage_core` and `workers`: thin, light to import, safe to retry.

Each operator's module is imported on first use: `from lockgate.operators import JobSetupOperator`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockgate.operators.announce import JobAnnounceOperator
    from lockgate.operators.audit import AuditOperator
    from lockgate.operators.blobs import BlobSweepOperator, BlobUploadOperator
    from lockgate.operators.compaction import CompactOperator
    from lockgate.operators.connections import lockgate_connection
    from lockgate.operators.files import (
        FileRetentionOperator,
        LeaseRecoveryOperator,
        VolumeUpkeepOperator,
    )
    from lockgate.operators.jobs import JobAbortOperator, JobCommitOperator, JobSetupOperator
    from lockgate.operators.journal import JournalCheckpointOperator
    from lockgate.operators.notifier import JobNotifier
    from lockgate.operators.recovery import JobRecoveryOperator
    from lockgate.operators.revert import RevertOperator
    from lockgate.operators.sensors import JobSensor, ManifestSensor
    from lockgate.operators.spark import SparkWriteOperator
    from lockgate.operators.tasks import TaskCommitOperator
    from lockgate.operators.uploads import UploadSweepOperator

__all__ = [
    "AuditOperator",
    "BlobSweepOperator",
    "BlobUploadOperator",
    "CompactOperator",
    "FileRetentionOperator",
    "JobAbortOperator",
    "JobAnnounceOperator",
    "JobCommitOperator",
    "JobNotifier",
    "JobRecoveryOperator",
    "JobSensor",
    "JobSetupOperator",
    "JournalCheckpointOperator",
    "LeaseRecoveryOperator",
    "ManifestSensor",
    "RevertOperator",
    "SparkWriteOperator",
    "TaskCommitOperator",
    "UploadSweepOperator",
    "VolumeUpkeepOperator",
    "lockgate_connection",
]

_MODULES: Final = {
    "AuditOperator": "audit",
    "BlobSweepOperator": "blobs",
    "BlobUploadOperator": "blobs",
    "CompactOperator": "compaction",
    "JobAbortOperator": "jobs",
    "JobAnnounceOperator": "announce",
    "JobCommitOperator": "jobs",
    "JobNotifier": "notifier",
    "JobRecoveryOperator": "recovery",
    "JobSensor": "sensors",
    "JobSetupOperator": "jobs",
    "JournalCheckpointOperator": "journal",
    "LeaseRecoveryOperator": "files",
    "ManifestSensor": "sensors",
    "RevertOperator": "revert",
    "SparkWriteOperator": "spark",
    "TaskCommitOperator": "tasks",
    "UploadSweepOperator": "uploads",
    "FileRetentionOperator": "files",
    "VolumeUpkeepOperator": "files",
    "lockgate_connection": "connections",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
