"""Roll back a job that was decided to abort, or revert a commit whose turn did not publish it.

Source: commit protocol, "Revert", and steps 5 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final

from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.publish.cleanup import Marks
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.finalization import end
from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended, FileResult
from lockgate.storage_core.commit.uploads.upload_completion import NOT_ABOUT_THE_FILE, has_no_object, is_open
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import PendingUpload, Store

REVERT_TRIES: Final = 5
LOOK_AGAIN_S: Final = 3600.0
"""After this time, a sweep reverts the plan again, because uploads may have been completed meanwhile."""


def abort(context: CommitContext, decision: Decision, outcome: Outcome | None) -> Ended:
    """Bring a job that was decided to abort to `COMMIT_FAIL`."""
    marks = Marks(decision, outcome)
    return end(context, marks, ended="failed", reason=f"aborted: {decision.reason}", receipt=None)


def revert(context: CommitContext, decision: Decision, plan: Plan, outcome: Outcome) -> Ended:
    """Delete the files that a commit made visible, then write `COMMIT_FAIL`.

    Replaced files are still there: they are deleted only after a publication.

    Raises:
        OutcomeUnknownError: A file could not be reverted; nothing else was deleted; try again.
    """
    revert_plan(context, plan)
    reason = outcome.reason or f"turn {outcome.turn} ended {outcome.verdict}"
    return end(
        context,
        Marks(decision, outcome),
        ended="failed",
        reason=f"reverted: {reason}",
        receipt=None,
        retained_until_s=context.clock.now_s() + LOOK_AGAIN_S,
    )


def revert_plan(context: CommitContext, plan: Plan, *, exclude: Container[str] = ()) -> None:
    """Abort a plan's uploads and delete the objects of this job.

    All uploads are aborted first, so none can be completed any more.

    Args:
        context: Context of the job.
        plan: Plan that was not published.
        exclude: Keys that another job has published since.
    """

    def files() -> Iterator[PendingFile]:
        return (file for file in plan.all_additions() if file.key not in exclude)

    with step("revert"):
        for _ in in_parallel(
            lambda file: _unless_refused(context, file, _abort),
            files(),
            context.settings.near_calls,
            context.settings.far_calls,
        ):
            pass
        for outcome in in_parallel(
            lambda file: _unless_refused(context, file, _revert_file),
            files(),
            context.settings.near_calls,
            context.settings.far_calls,
        ):
            if outcome is not None:
                context.report.add(outcome)


def _unless_refused(
    context: CommitContext,
    file: PendingFile,
    revert: Callable[[CommitContext, PendingFile], FileResult | None],
) -> FileResult | None:
    """Revert a file; if the store refuses such a key, it has no object, and its upload is left."""
    try:
        return revert(context, file)
    except (StoreUnavailableError, *NOT_ABOUT_THE_FILE):
        raise  # of all files alike
    except NotAppliedError as error:
        if not has_no_object(context.store, file.key):
            raise
        return FileResult(key=file.key, result="left", detail=f"not reverted: {error}")


def _abort(context: CommitContext, file: PendingFile) -> None:
    context.store.abort_upload(file.key, file.upload.upload_id)


def _revert_file(context: CommitContext, file: PendingFile) -> FileResult:
    """Abort the upload and delete the object if it is this job's, until neither is there."""
    for _ in range(REVERT_TRIES):
        if is_open(context.store, file.upload):
            try:
                _abort(context, file)
            except UploadGoneError:
                continue
        try:
            if not _delete_own(context.store, file.upload):
                return FileResult(key=file.key, result="reverted")
        except (PreconditionFailedError, OutcomeUnknownError):
            continue
    raise OutcomeUnknownError(
        f"{context.store.url}/{file.key}: it is still there after {REVERT_TRIES} tries to revert it; nothing "
        "else was deleted; run recovery again"
    )


def _delete_own(store: Store, upload: PendingUpload) -> bool:
    """Delete the object that an upload became; return whether it existed."""
    try:
        # Before the owner is checked, so that an object that replaces it meanwhile is kept. (If versions are
        # ETags, as on S3, another object with the same bytes has the same version.)
        version = store.head(upload.key).version
    except ObjectNotFoundError:
        return False
    if not store.holds(upload):
        return False
    store.delete(upload.key, if_version=version if store.capabilities.conditional_delete else None)
    return True
