"""Finalize a job: delete the files that it replaced, write its markers and report, clean up.

Replaced files are deleted only after the new ones are published, so a crash never leaves a gap.
Source: commit protocol, steps 8 and 9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final, Literal

from lockgate.storage_core.commit.committers.early_visibility import delete_unpublished
from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.publish.cleanup import (
    Marks,
    abort_uploads,
    clean_up,
    delete_staged_files,
)
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.publication import Publication
from lockgate.storage_core.commit.publish.success_file import PublishedFiles, write_success
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.create_if_absent import claim, retry_while_busy
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.plan_records import Decision, RemovedFile
from lockgate.storage_core.commit.records.report import Ended, FileResult, Report
from lockgate.storage_core.commit.uploads.own_uploads import JobUploads
from lockgate.storage_core.concurrency import Together, in_parallel
from lockgate.storage_core.errors import (
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import step

LOG: Final = logging.getLogger("lockgate.ending")


def finish(context: CommitContext, decision: Decision, plan: Plan, publication: Publication) -> Ended:
    """Bring a published job to `COMMIT_SUCCESS`; return the stored marker.

    Raises:
        OutcomeUnknownError: It is not known whether a marker was written; try again.
    """
    outcome = publication.outcome
    if outcome.receipt is None:
        raise MalformedRecordError(f"{layout.turn_outcome(outcome.turn)}: published without a receipt")
    retention_s = context.job.spec.replaced_retention_s
    if retention_s:
        for replaced in plan.all_removals():
            context.report.add(FileResult(key=replaced.key, result="retained"))
    else:
        remove_replaced(context, plan)
    published = PublishedFiles(decision, outcome, outcome.receipt, plan)
    for file in plan.all_additions():
        context.report.add(FileResult(key=file.key, result="published"))
        published.add(file)
    with step("checkpoint"):
        DestinationLog(context.store).keep_checkpoint(outcome.turn)
    with Together(context.settings.near_calls) as together:
        with step("success"):
            written = together.start(partial(write_success, context, published, publication.success))
        return end(
            context,
            Marks(decision, outcome),
            ended="committed",
            reason="",
            receipt=outcome.receipt,
            retained_until_s=outcome.decided_s + retention_s if retention_s else 0.0,
            uploads=publication.uploads,
            before_marker=written.result,
        )


def remove_replaced(context: CommitContext, plan: Plan) -> None:
    """Delete the files that a published plan replaces; report those that cannot be deleted."""
    with step("remove"):
        for removed in in_parallel(
            lambda file: _remove(context, file),
            plan.all_removals(),
            context.settings.near_calls,
            context.settings.far_calls,
        ):
            context.report.add(removed)


def end(
    context: CommitContext,
    marks: Marks,
    *,
    ended: Literal["committed", "failed"],
    reason: str,
    receipt: Receipt | None,
    retained_until_s: float = 0.0,
    uploads: JobUploads | None = None,
    before_marker: Callable[[], None] = lambda: None,
) -> Ended:
    """Drop the uploads of attempts that were not chosen, write report and terminal marker, then clean up.

    After the marker, no upload of the job is open, except one that a killed attempt may open later, which the
    sweep aborts.

    Args:
        context: Context of the job.
        marks: Its decision and outcome.
        ended: Whether it was published.
        reason: Why it failed.
        receipt: Receipt of its publication.
        retained_until_s: Time until which a sweep needs its plan.
        uploads: Its open uploads, listed after its files were completed; by default they are listed now.
        before_marker: Called before the marker is created.

    Returns:
        The stored marker.
    """
    all_dropped = drop_uploads(context, marks, uploads)
    delete_staged_files(context.folder, context.job, context.settings)
    report = Report(
        job_id=context.job.job_id,
        ended=ended,
        reason=reason,
        receipt=receipt,
        counts=dict(context.report.counts),
        shards=tuple(context.report.shards),
        files=context.report.unstored(),
    )
    marker = Ended(
        job_id=context.job.job_id,
        ended=ended,
        ended_s=context.clock.now_s(),
        reason=reason,
        receipt=receipt,
        retained_until_s=retained_until_s,
    )
    is_over = all_dropped and not retained_until_s
    with Together(context.settings.near_calls) as together, step("end"):
        # The report is written before the marker, so a job with a marker has a report. If several processes
        # finish the job, the last report stays.
        context.store.put(context.folder.key("report.json"), encode(report))
        before_marker()
        name = "COMMIT_SUCCESS" if ended == "committed" else "COMMIT_FAIL"
        with step("clean-up"):
            pages = context.folder.store.pages(context.folder.prefix)
            first = together.start(partial(next, pages, ())) if is_over else None
        stored = claim(context.store, context.folder.key(name), marker)
    if first is not None:
        try:
            clean_up(context.folder, context.job, context.settings, chain([first.result()], pages))
        except LockgateError as error:
            # The job has ended. Its lease is still there, so recovery and the sweep repeat the clean-up.
            LOG.warning("job %s has ended but is not cleaned up (%s): recovery will", stored.job_id, error)
    return stored


def drop_uploads(context: CommitContext, marks: Marks, uploads: JobUploads | None = None) -> bool:
    """Abort open uploads and delete unpublished early files; return whether all are gone.

    Args:
        context: Context of the job.
        marks: Its decision and outcome.
        uploads: See `abort_uploads`.
    """
    folder, job, settings = context.folder, context.job, context.settings
    all_dropped = True
    for outcome in chain(
        abort_uploads(folder, job, settings, marks, uploads),
        delete_unpublished(folder, job, settings, *marks),
    ):
        context.report.add(outcome)
        all_dropped = all_dropped and outcome.result == "aborted"
    return all_dropped


def _remove(context: CommitContext, file: RemovedFile) -> FileResult:
    """Delete a replaced file if it still has the version in the plan."""
    if not file.version:
        return FileResult(key=file.key, result="removed", detail="it was gone already")
    key = file.listed_key
    try:
        if context.store.capabilities.conditional_delete:
            # Retry after a lost answer too: a delete by version cannot delete a later version.
            retry_while_busy(OutcomeUnknownError).call(context.store.delete, key, if_version=file.version)
        elif file.managed:
            context.store.delete(key)  # the name of a managed file is never used for another file
        else:
            detail = "the job does not own it, and the store cannot delete by version"
            return FileResult(key=file.key, result="kept", detail=detail)
    except PreconditionFailedError:
        return FileResult(key=file.key, result="kept", detail="it changed after the plan was made")
    except (OutcomeUnknownError, StoreUnavailableError):
        raise  # the job stays published; a retry or recovery continues here
    except NotAppliedError as error:
        return FileResult(key=file.key, result="kept", detail=str(error))
    return FileResult(key=file.key, result="removed")
