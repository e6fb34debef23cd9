"""The ways back: a decided abort, and the revert of a commit whose turn did not publish it.

Source: commit protocol, "Revert", and steps 5 and 7.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.displaced_files import restore_displaced
from lockgate.storage_core.commit.publish.finalization import end
from lockgate.storage_core.commit.records.log_entries import Outcome
from lockgate.storage_core.commit.records.plan import Decision
from lockgate.storage_core.commit.records.report import Ended, FileOutcome
from lockgate.storage_core.commit.records.task import PendingFile
from lockgate.storage_core.commit.uploads.upload_completion import is_open
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


def abort(context: CommitContext, decision: Decision) -> Ended:
    """Bring a job that was decided to abort to `COMMIT_FAIL`."""
    return end(context, ended="failed", reason=f"aborted: {decision.reason}", receipt=None)


def revert(context: CommitContext, decision: Decision, outcome: Outcome) -> Ended:
    """Take back what a commit made visible, then `COMMIT_FAIL`.

    All uploads are aborted first, so that nothing can complete any more; then those objects go that are
    this job's. Replaced files were never touched: they go only after a publication.

    Raises:
        OutcomeUnknownError: A file could not be taken back; nothing else was deleted; try again.
    """
    take_back(context, read_plan(context.folder, decision.plan or ""))
    reason = outcome.reason or f"turn {outcome.turn} ended {outcome.verdict}"
    return end(
        context,
        ended="failed",
        reason=f"reverted: {reason}",
        receipt=None,
        retained_until_s=context.clock.now_s() + LOOK_AGAIN_S,
    )


def take_back(context: CommitContext, plan: Plan, *, spare: Container[str] = ()) -> None:
    """Drop a plan's uploads, delete those of its objects that are this job's, and undo what made way.

    Args:
        context: Context of the job.
        plan: What it had wanted to publish.
        spare: Keys that somebody else has published since.
    """

    def files() -> Iterator[PendingFile]:
        return (file for file in plan.all_additions() if file.key not in spare)

    with step("revert"):
        for _ in in_parallel(lambda file: _abort(context, file), files(), context.settings.parallelism):
            pass
        for fate in in_parallel(
            lambda file: _take_back(context, file), files(), context.settings.parallelism
        ):
            context.report.add(fate)
    restore_displaced(context, plan)


def _abort(context: CommitContext, file: PendingFile) -> None:
    context.store.abort_upload(file.key, file.upload.upload_id)


def _take_back(context: CommitContext, file: PendingFile) -> FileOutcome:
    """Delete the object if it is ours, until neither the upload nor our object is there."""
    for _ in range(REVERT_TRIES):
        if is_open(context.store, file.upload):
            try:
                _abort(context, file)
            except UploadGoneError:
                continue
        try:
            if not _delete_own(context.store, file.upload):
                return FileOutcome(key=file.key, fate="reverted")
        except (PreconditionFailedError, OutcomeUnknownError):
            continue
    raise OutcomeUnknownError(
        f"{context.store.url}/{file.key}: taking it back was tried {REVERT_TRIES} times and it still stands; "
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
