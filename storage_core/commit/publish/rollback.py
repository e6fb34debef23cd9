"""The ways back: a decided abort, and the revert of a commit whose turn did not publish it.

Source: commit protocol, "Revert", and steps 5 and 7.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.publish.displaced_files import move_back
from lockgate.storage_core.commit.publish.finalization import end
from lockgate.storage_core.commit.publish.shard_completion import is_open
from lockgate.storage_core.commit.records.job import Decision, Ended, FileFate, Outcome, PendingFile
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import PendingUpload, Store

REVERT_TRIES: Final = 5
LOOK_AGAIN_S: Final = 3600.0
"""A sweep after this time looks once more for objects whose completion was under way during the revert."""


def abort(work: JobWork, decision: Decision) -> Ended:
    """Bring a job that was decided to abort to `COMMIT_FAIL`."""
    return end(work, ended="failed", reason=f"aborted: {decision.reason}", receipt=None)


def revert(work: JobWork, decision: Decision, outcome: Outcome) -> Ended:
    """Take back what a commit made visible, then `COMMIT_FAIL`.

    All uploads are aborted first, so that nothing can complete any more; then those objects go that are
    this job's. Replaced files were never touched: they go only after a publication.

    Raises:
        OutcomeUnknownError: A file could not be taken back; nothing else was deleted; try again.
    """
    take_back(work, read_plan(work.folder, decision.plan or ""))
    reason = outcome.reason or f"turn {outcome.turn} ended {outcome.verdict}"
    return end(
        work,
        ended="failed",
        reason=f"reverted: {reason}",
        receipt=None,
        retained_until_s=work.clock.now_s() + LOOK_AGAIN_S,
    )


def take_back(work: JobWork, plan: Plan, *, spare: Container[str] = ()) -> None:
    """Drop a plan's uploads, delete those of its objects that are this job's, and undo what made way.

    Args:
        work: On the job.
        plan: What it had wanted to publish.
        spare: Keys that somebody else has published since.
    """

    def files() -> Iterator[PendingFile]:
        return (file for file in plan.all_additions() if file.key not in spare)

    with step("revert"):
        for _ in in_parallel(lambda file: _abort(work, file), files(), work.settings.parallelism):
            pass
        for fate in in_parallel(lambda file: _take_back(work, file), files(), work.settings.parallelism):
            work.fates.add(fate)
    move_back(work, plan)


def _abort(work: JobWork, file: PendingFile) -> None:
    work.store.abort_upload(file.key, file.upload.upload_id)


def _take_back(work: JobWork, file: PendingFile) -> FileFate:
    """Delete the object if it is ours, until neither the upload nor our object is there."""
    for _ in range(REVERT_TRIES):
        if is_open(work.store, file.upload):
            try:
                _abort(work, file)
            except UploadGoneError:
                continue
        try:
            if not _delete_own(work.store, file.upload):
                return FileFate(key=file.key, fate="reverted")
        except (PreconditionFailedError, OutcomeUnknownError):
            continue
    raise OutcomeUnknownError(
        f"{work.store.url}/{file.key}: taking it back was tried {REVERT_TRIES} times and it still stands; "
        "nothing else was deleted; run recovery again"
    )


def _delete_own(store: Store, upload: PendingUpload) -> bool:
    """Delete the object that an upload became; returns whether it stood.

    Its version is read before it is asked whose it is: what takes its place in between, or after, is kept.
    (Where versions are ETags, as on S3, another object of the same bytes has the same one.)
    """
    try:
        version = store.head(upload.key).version
    except ObjectNotFoundError:
        return False
    if not store.holds(upload):
        return False
    store.delete(upload.key, if_version=version if store.capabilities.conditional_delete else None)
    return True
