"""Finalize a job: take away the files that it replaced, write its markers and report, clean up.

Replaced files are taken away only after the new ones are published, so a crash never leaves a gap.
Source: commit protocol, steps 8 and 9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final, Literal

import msgspec

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
from lockgate.storage_core.commit.publish.replaced_files import remove_replaced
from lockgate.storage_core.commit.publish.success_file import (
    EarlierSuccess,
    PublishedFiles,
    write_success,
)
from lockgate.storage_core.commit.publish.table_projection import project_turn
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended, FileResult, Report
from lockgate.storage_core.commit.uploads.own_uploads import JobUploads
from lockgate.storage_core.commit.uploads.upload_completion import is_folder
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.errors import (
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    OutcomeUnknownError,
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
    project_turn(context, outcome.turn, publication.tables)
    remove_replaced(context, plan)
    receipt = msgspec.structs.replace(
        outcome.receipt,
        undeleted_files=context.report.counts["undeleted"],
        tables_behind=context.tables.text,
    )
    published = PublishedFiles(decision, outcome, receipt, plan)
    for file in plan.all_additions():
        context.report.add(FileResult(key=file.key, result="published"))
        published.add(file)
    try:
        with step("checkpoint"):
            DestinationLog(context.store).keep_checkpoint(outcome.turn)
    except LockgateError as error:
        LOG.warning("%s has no checkpoint of turn %d: %s", context.store.url, outcome.turn, error)
    with Together(context.settings.near_calls) as together:
        with step("success"):
            written = together.start(partial(_write_success, context, published, publication.success))
        return end(
            context,
            Marks(decision, outcome),
            ended="committed",
            reason="",
            receipt=receipt,
            uploads=publication.uploads,
            before_marker=written.result,
        )


def _write_success(context: CommitContext, published: PublishedFiles, earlier: EarlierSuccess | None) -> str:
    """Write `_SUCCESS`; return why the store refuses it, which must not keep a published job from its end."""
    try:
        write_success(context, published, earlier)
    except (NotAppliedError, OutcomeUnknownError) as error:
        is_definite = not isinstance(error, (OutcomeUnknownError, StoreUnavailableError))
        if not is_definite and not is_folder(context.store, layout.SUCCESS):
            raise
        LOG.warning("job %s is published without %s: %s", context.job.job_id, layout.SUCCESS, error)
        return f"published without {layout.SUCCESS}: {error}"
    return ""


def end(
    context: CommitContext,
    marks: Marks,
    *,
    ended: Literal["committed", "failed"],
    reason: str,
    receipt: Receipt | None,
    retained_until_s: float = 0.0,
    uploads: JobUploads | None = None,
    before_marker: Callable[[], str] = lambda: "",
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
        before_marker: Called before the marker is created; returns the reason of a job that did not fail.

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
        counts={},
        shards=(),
        files=(),
    )
    is_waiting = context.report.counts["undeleted"] or context.tables.is_waiting
    is_over = all_dropped and not is_waiting and not retained_until_s
    with Together(context.settings.near_calls) as together, step("end"):
        # The report is written before the marker, so a job with a marker has a report. If several processes
        # finish the job, the last report stays.
        context.report.write(report)
        marker = Ended(
            job_id=context.job.job_id,
            ended=ended,
            ended_s=context.clock.now_s(),
            reason=before_marker() or reason,
            receipt=receipt,
            retained_until_s=retained_until_s,
        )
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
