"""After the publication: what `replace` took away is deleted, then the markers for readers and for us.

New data first, deletions after: a crash never leaves a hole.
Source: commit protocol, steps 8 and 9.
"""

from __future__ import annotations

import logging
from typing import Final

from lockgate.storage_core.commit.committers.early_visibility import delete_unpublished
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.publish.cleanup import abort_uploads, clean_up, drop_real_files
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.displaced_files import aside_key
from lockgate.storage_core.commit.publish.success_file import PublishedFiles, write_success
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job_folder import claim, retry_while_busy
from lockgate.storage_core.commit.records.log_entries import Outcome, Receipt
from lockgate.storage_core.commit.records.plan import Decision, RemovedFile
from lockgate.storage_core.commit.records.report import Ended, FileOutcome, Report
from lockgate.storage_core.concurrency import in_parallel
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


def finish(context: CommitContext, decision: Decision, outcome: Outcome) -> Ended:
    """Bring a published job to `COMMIT_SUCCESS`; returns the marker that stands.

    Raises:
        OutcomeUnknownError: A marker's fate is not known; try again.
    """
    if outcome.receipt is None:
        raise MalformedRecordError(f"{layout.turn_outcome(outcome.turn)}: published without a receipt")
    plan = read_plan(context.folder, decision.plan or "")
    retention_s = context.job.spec.replaced_retention_s
    if retention_s:
        for replaced in plan.all_removals():
            context.report.add(FileOutcome(key=replaced.key, fate="retained"))
    else:
        remove_replaced(context, plan)
    published = PublishedFiles(decision, outcome, outcome.receipt, plan)
    for file in plan.all_additions():
        context.report.add(FileOutcome(key=file.key, fate="published"))
        published.add(file)
    with step("checkpoint"):
        DestinationLog(context.store).keep_checkpoint(outcome.turn)
    with step("success"):
        write_success(context, published)
    return end(
        context,
        ended="committed",
        reason="",
        receipt=outcome.receipt,
        retained_until_s=outcome.decided_s + retention_s if retention_s else 0.0,
    )


def remove_replaced(context: CommitContext, plan: Plan) -> None:
    """Delete what a published plan takes away; what cannot be deleted is kept and reported."""
    with step("remove"):
        for fate in in_parallel(
            lambda file: _remove(context, file), plan.all_removals(), context.settings.parallelism
        ):
            context.report.add(fate)


def end(
    context: CommitContext, *, ended: str, reason: str, receipt: Receipt | None, retained_until_s: float = 0.0
) -> Ended:
    """Drop what losers left open, write the report and the terminal marker, then clean up.

    Once the marker stands, no upload of the job is open, but for one that a killed attempt's zombie opens
    later: the sweep takes that.

    Returns:
        The marker that stands.
    """
    all_dropped = drop_uploads(context)
    drop_real_files(context.folder, context.job, context.settings)
    report = Report(
        job_id=context.job.job_id,
        ended=ended,  # type: ignore[arg-type]
        reason=reason,
        receipt=receipt,
        counts=dict(context.report.counts),
        shards=tuple(context.report.shards),
        fates=context.report.held(),
    )
    marker = Ended(
        job_id=context.job.job_id,
        ended=ended,  # type: ignore[arg-type]
        ended_s=context.clock.now_s(),
        reason=reason,
        receipt=receipt,
        retained_until_s=retained_until_s,
    )
    with step("end"):
        # The report is written before the marker: who finds the marker finds the report. Of several
        # finishers the last one's stays; each tells what it saw.
        context.store.put(context.folder.key("report.json"), encode(report))
        name = "COMMIT_SUCCESS" if ended == "committed" else "COMMIT_FAIL"
        standing = claim(context.store, context.folder.key(name), marker)
    if all_dropped and not retained_until_s:
        try:
            clean_up(context.folder, context.job, context.settings)
        except LockgateError as error:
            # The job has ended, whatever it leaves; its lease stays too, so recovery and the sweep look.
            LOG.warning(
                "job %s has ended and is not cleaned up (%s): recovery will", context.job.job_id, error
            )
    return standing


def drop_uploads(context: CommitContext) -> bool:
    """Drop what losers left, open or seen early; returns whether all is gone. If not, recovery looks."""
    all_dropped = True
    for drop in (abort_uploads, delete_unpublished):
        for fate in drop(context.folder, context.job, context.settings):
            context.report.add(fate)
            all_dropped = all_dropped and fate.fate == "aborted"
    return all_dropped


def _remove(context: CommitContext, file: RemovedFile) -> FileOutcome:
    """Delete a replaced file, only if it is still the version that the plan saw."""
    if not file.version:
        return FileOutcome(key=file.key, fate="removed", detail="it was gone already")
    stands_at = aside_key(context.folder, file) if file.in_the_way else file.key
    try:
        if context.store.capabilities.conditional_delete:
            # After a lost answer too: by its version, it is deleted once.
            retry_while_busy(OutcomeUnknownError)(context.store.delete, stands_at, if_version=file.version)
        elif file.managed:
            context.store.delete(stands_at)  # a managed name is never written again: no one else's bytes
        else:
            return FileOutcome(
                key=file.key, fate="kept", detail="not ours, and the store cannot delete by version"
            )
    except PreconditionFailedError:
        return FileOutcome(key=file.key, fate="kept", detail="it changed after the plan was made")
    except (OutcomeUnknownError, StoreUnavailableError):
        raise  # the job stays published; the next try, or recovery, goes on here
    except NotAppliedError as error:
        return FileOutcome(key=file.key, fate="kept", detail=str(error))
    return FileOutcome(key=file.key, fate="removed", detail="it had made way" if file.in_the_way else "")
