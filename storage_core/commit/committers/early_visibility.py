"""Files that readers who list see before their job commits: what `file-v2` and `direct` are about.

A file is shown only where no other stands, so of several attempts the first one is seen. The job's commit
puts the chosen one in its place, and its end removes whatever it did not publish.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.commit.committers import shows_early
from lockgate.storage_core.commit.destination.conflict_mode import visible_files
from lockgate.storage_core.commit.publish.shard_completion import is_open
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job import FileFate, JobRecord, LiveShard
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.shards import read_shard
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


def show(folder: JobFolder, upload: PendingUpload) -> None:
    """Make a pending upload visible, unless its job is decided: then the job's end settles it.

    Raises:
        UploadGoneError: The file is lost: the store has ended the upload, and not made it visible.
    """
    if folder.decision() is not None:
        return
    try:
        folder.store.complete_upload(upload, if_absent=True)
    except AlreadyExistsError:
        return  # it lies behind another attempt's: the job's commit puts the chosen one in its place
    except (UploadGoneError, OutcomeUnknownError):
        _refuse_if_lost(folder, upload)


def _refuse_if_lost(folder: JobFolder, upload: PendingUpload) -> None:
    # Open before held: what is completed between the two questions is held. And whoever decided meanwhile
    # may have put another attempt's file in its place, or dropped it.
    if is_open(folder.store, upload) or folder.store.holds(upload) or folder.decision() is not None:
        return
    raise UploadGoneError(
        f"{folder.store.url}/{upload.key}: the store ended its upload instead of showing it (S3 does, with a "
        "409, when others write to the key); the file is lost; run the task again"
    )


def drop_unpublished(folder: JobFolder, job: JobRecord, settings: Settings) -> Iterator[FileFate]:
    """Delete every visible file of a job whose end is certain that it has not published.

    After its uploads were aborted, so that no more of them become visible.
    """
    decision = folder.decision()
    outcome = folder.outcome(decision)
    certain = decision is not None and (decision.verdict == "abort" or outcome is not None)
    if not shows_early(job.spec) or not certain:
        return
    published = {
        file.key
        for ref in (outcome.added if outcome is not None else ())
        for file in read_shard(folder.store, LiveShard, layout.log_shard, ref.digest).files
    }

    def drop(info: ObjectInfo) -> FileFate:
        conditional = folder.store.capabilities.conditional_delete
        try:
            folder.store.delete(info.key, if_version=info.version if conditional else None)
        except LockgateError as error:
            return FileFate(key=info.key, fate="unsettled", detail=f"seen early and not removed: {error}")
        return FileFate(key=info.key, fate="aborted", detail="it was seen before the job's end")

    with step("drop-early"):
        unpublished = (
            info
            for info in visible_files(folder.store)
            if short_id_in(info.key) == job.short_id and info.key not in published
        )
        yield from in_parallel(drop, unpublished, settings.parallelism)
