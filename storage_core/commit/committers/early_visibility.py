"""Publish files before their job commits, as `file-v2` and `direct` do, and remove them if it does not.

A file is published only if its key is free, so the first of several attempts is visible. The job commit
replaces it with the selected one, and the job's end removes every file that was not published.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.commit.committers import is_visible_early
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import LiveShard, Outcome
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.commit.records.shards import read_shard
from lockgate.storage_core.commit.uploads.upload_completion import is_open
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    LockgateError,
    OutcomeUnknownError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import short_id_in
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import ObjectInfo, PendingUpload


def publish_early(folder: JobFolder, upload: PendingUpload) -> None:
    """Make a pending upload visible, unless its job is decided: then the job's end decides.

    Raises:
        UploadGoneError: The file is lost: the store ended the upload without making it visible.
    """
    if folder.decision() is not None:
        return
    try:
        folder.store.complete_upload(upload, if_absent=True)
    except AlreadyExistsError:
        return  # another attempt's file has the key: the job commit replaces it with the selected one
    except (UploadGoneError, OutcomeUnknownError):
        _refuse_if_lost(folder, upload)


def _refuse_if_lost(folder: JobFolder, upload: PendingUpload) -> None:
    # Check `is_open` first: an upload completed between the two calls is then found by `holds`. If the job
    # was decided meanwhile, its commit may have replaced or deleted the file.
    if is_open(folder.store, upload) or folder.store.holds(upload) or folder.decision() is not None:
        return
    raise UploadGoneError(
        f"{folder.store.url}/{upload.key}: the store ended its upload without making it visible (S3 does, "
        "with a 409, on concurrent writes to the key); the file is lost; run the task again"
    )


def delete_unpublished(
    folder: JobFolder,
    job: JobRecord,
    settings: Settings,
    decision: Decision | None,
    outcome: Outcome | None,
) -> Iterator[FileResult]:
    """Delete every visible file that a finished job has not published, and yield their files.

    Some committers show files early, and so does a job that was quarantined during its commit. Call it after
    the job's uploads were aborted, so that no more of them become visible.

    Args:
        folder: Folder of the job.
        job: Record of the job.
        settings: Settings.
        decision: Decision of the job.
        outcome: Outcome of the turn that it names.
    """
    certain = decision is not None and (decision.verdict == "abort" or outcome is not None)
    was_aside = decision is not None and decision.verdict == "quarantined"
    if not was_aside and not (is_visible_early(job.spec) and certain):
        return
    published = {
        file.key
        for ref in (outcome.added if outcome is not None else ())
        for file in read_shard(folder.store, LiveShard, layout.log_shard, ref.digest).files
    }

    def drop(info: ObjectInfo) -> FileResult:
        conditional = folder.store.capabilities.conditional_delete
        try:
            folder.store.delete(info.key, if_version=info.version if conditional else None)
        except LockgateError as error:
            return FileResult(key=info.key, result="left", detail=f"visible early, not removed: {error}")
        return FileResult(key=info.key, result="aborted", detail="it was visible before the job's end")

    with step("drop-early"):
        unpublished = (
            info
            for info in visible_files(folder.store)
            if short_id_in(info.key) == job.short_id and info.key not in published
        )
        yield from in_parallel(drop, unpublished, settings.near_calls)
