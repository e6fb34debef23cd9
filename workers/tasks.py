"""The Celery tasks: one effect each, scalar arguments, safe to run again, also concurrently."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockgate.storage_core.commit.publish.shard_completion import complete_shard_of
from lockgate.storage_core.commit.recovery.recover import recover_job as recover
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import load_settings
from lockgate.workers.celery_app import app
from lockgate.workers.session.task import SessionTask
from lockgate.workers.task_commit import commit_staged_task

OPTIONS: Final[dict[str, Any]] = {
    "base": SessionTask,
    # The only error that is known to have had no effect and may be temporary.
    "autoretry_for": (StoreUnavailableError,),
    "retry_backoff": True,
    "retry_backoff_max": 60,
    "max_retries": 6,
}


def complete_plan_shard(destination: str, job_id: str, plan: str, shard: int) -> dict[str, Any]:
    """Make the files of one shard of a decided plan visible, and return the shard's report."""
    return _built_in(complete_shard_of(destination, JobId(job_id), plan, shard, load_settings()))


def settle_job(destination: str, job_id: str, dry_run: bool = False) -> dict[str, Any]:
    """Settle a job whose driver is gone, by the protocol's recovery table."""
    return _built_in(recover(destination, JobId(job_id), settings=load_settings(), dry_run=dry_run))


def sweep_unreferenced_blobs(dry_run: bool = True, orphans: bool | None = None) -> dict[str, Any]:
    """Delete unreferenced blobs, at the blob server of this worker's settings."""
    # A sender does not need the journal.
    from lockgate.storage_core.blobs.server_or_client import open_blobs  # noqa: PLC0415

    with open_blobs(load_settings()) as blobs:
        return _built_in(blobs.sweep(dry_run=dry_run, orphans=orphans))


def recover_ended_files(report_only: bool = False) -> dict[str, Any]:
    """Close the appendable files whose writers have ended, on the volumes that this worker reaches."""
    from lockgate.storage_core.event_log.event_files import delete_old_logs  # noqa: PLC0415 - as above
    from lockgate.storage_core.files.scheduled_work import recover_files  # noqa: PLC0415 - as above

    delete_old_logs(load_settings(), dry_run=report_only)
    return _built_in(recover_files(load_settings(), report_only=report_only))


def maintain_replicas(path: str = "", repair: bool = False, mb_per_s: int = 20) -> dict[str, Any]:
    """Check the replicas on the volumes that this worker reaches, or report, verify and repair them."""
    from lockgate.storage_core.files import scheduled_work  # noqa: PLC0415 - as above

    if repair:
        return _built_in(scheduled_work.maintain_volumes(load_settings(), bytes_per_s=mb_per_s * 1e6))
    return _built_in(scheduled_work.check_volumes(load_settings(), path, bytes_per_s=mb_per_s * 1e6))


def _built_in(record: msgspec.Struct) -> dict[str, Any]:
    built_in = msgspec.to_builtins(record)
    return dict(built_in)


commit_task = app.task(commit_staged_task, name="lockgate.commit_task", **OPTIONS)
complete_shard = app.task(complete_plan_shard, name="lockgate.complete_shard", **OPTIONS)
recover_job = app.task(settle_job, name="lockgate.recover_job", **OPTIONS)
sweep_blobs = app.task(sweep_unreferenced_blobs, name="lockgate.sweep_blobs", **OPTIONS)
recover_files = app.task(recover_ended_files, name="lockgate.recover_files", **OPTIONS)
maintain_volumes = app.task(maintain_replicas, name="lockgate.maintain_volumes", **OPTIONS)
