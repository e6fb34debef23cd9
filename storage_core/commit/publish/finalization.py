"""After the publication: what `replace` took away is deleted, then the markers for readers and for us.

New data first, deletions after: a crash never leaves a hole.
Source: commit protocol, steps 8 and 9.
"""

from __future__ import annotations

import logging
from typing import Final

from lockgate.storage_core.commit.committers.early_visibility import drop_unpublished
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.publish.cleanup import abort_uploads, clean_up, drop_real_files
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.publish.displaced_files import aside_key
from lockgate.storage_core.commit.publish.success_file import Published, write_success
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job import (
    Decision,
    Ended,
    FileFate,
    Outcome,
    Receipt,
    RemovedFile,
    Report,
)
from lockgate.storage_core.commit.records.job_folder import claim, while_busy
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


def finish(work: JobWork, decision: Decision, outcome: Outcome) -> Ended:
    """Bring a published job to `COMMIT_SUCCESS`; returns the marker that stands.

    Raises:
        OutcomeUnknownError: A marker's fate is not known; try again.
    """
    if outcome.receipt is None:
        raise MalformedRecordError(f"{layout.turn_outcome(outcome.turn)}: published without a receipt")
    plan = read_plan(work.folder, decision.plan or "")
    retention_s = work.job.spec.replaced_retention_s
    if retention_s:
        for replaced in plan.all_removals():
            work.fates.add(FileFate(key=replaced.key, fate="retained"))
    else:
        remove_replaced(work, plan)
    published = Published(decision, outcome, outcome.receipt, plan)
    for file in plan.all_additions():
        work.fates.add(FileFate(key=file.key, fate="published"))
        published.add(file)
    with step("checkpoint"):
        DestinationLog(work.store).keep_checkpoint(outcome.turn)
    with step("success"):
        write_success(work, published)
    return end(
        work,
        ended="committed",
        reason="",
        receipt=outcome.receipt,
        retained_until_s=outcome.decided_s + retention_s if retention_s else 0.0,
    )


def remove_replaced(work: JobWork, plan: Plan) -> None:
    """Delete what a published plan takes away; what cannot be deleted is kept and reported."""
    with step("remove"):
        for fate in in_parallel(
            lambda file: _remove(work, file), plan.all_removals(), work.settings.parallelism
        ):
            work.fates.add(fate)


def end(
    work: JobWork, *, ended: str, reason: str, receipt: Receipt | None, retained_until_s: float = 0.0
) -> Ended:
    """Drop what losers left open, write the report and the terminal marker, then clean up.

    Once the marker stands, no upload of the job is open, but for one that a killed attempt's zombie opens
    later: the sweep takes that.

    Returns:
        The marker that stands.
    """
    all_dropped = drop_uploads(work)
    drop_real_files(work.folder, work.job, work.settings)
    report = Report(
        job_id=work.job.job_id,
        ended=ended,  # type: ignore[arg-type]
        reason=reason,
        receipt=receipt,
        counts=dict(work.fates.counts),
        shards=tuple(work.fates.shards),
        fates=work.fates.held(),
    )
    marker = Ended(
        job_id=work.job.job_id,
        ended=ended,  # type: ignore[arg-type]
        ended_s=work.clock.now_s(),
        reason=reason,
        receipt=receipt,
        retained_until_s=retained_until_s,
    )
    with step("end"):
        # The report is written before the marker: who finds the marker finds the report. Of several
        # finishers the last one's stays; each tells what it saw.
        work.store.put(work.folder.key("report.json"), encode(report))
        name = "COMMIT_SUCCESS" if ended == "committed" else "COMMIT_FAIL"
        standing = claim(work.store, work.folder.key(name), marker)
    if all_dropped and not retained_until_s:
        try:
            clean_up(work.folder, work.job, work.settings)
        except LockgateError as error:
            # The job has ended, whatever it leaves; its lease stays too, so recovery and the sweep look.
            LOG.warning("job %s has ended and is not cleaned up (%s): recovery will", work.job.job_id, error)
    return standing


def drop_uploads(work: JobWork) -> bool:
    """Drop what losers left, open or seen early; returns whether all is gone. If not, recovery looks."""
    all_dropped = True
    for drop in (abort_uploads, drop_unpublished):
        for fate in drop(work.folder, work.job, work.settings):
            work.fates.add(fate)
            all_dropped = all_dropped and fate.fate == "aborted"
    return all_dropped


def _remove(work: JobWork, file: RemovedFile) -> FileFate:
    """Delete a replaced file, only if it is still the version that the plan saw."""
    if not file.version:
        return FileFate(key=file.key, fate="removed", detail="it was gone already")
    stands_at = aside_key(work.folder, file) if file.in_the_way else file.key
    try:
        if work.store.capabilities.conditional_delete:
            # After a lost answer too: by its version, it is deleted once.
            while_busy(OutcomeUnknownError)(work.store.delete, stands_at, if_version=file.version)
        elif file.managed:
            work.store.delete(stands_at)  # a managed name is never written again: no one else's bytes
        else:
            return FileFate(
                key=file.key, fate="kept", detail="not ours, and the store cannot delete by version"
            )
    except PreconditionFailedError:
        return FileFate(key=file.key, fate="kept", detail="it changed after the plan was made")
    except (OutcomeUnknownError, StoreUnavailableError):
        raise  # the job stays published; the next try, or recovery, goes on here
    except NotAppliedError as error:
        return FileFate(key=file.key, fate="kept", detail=str(error))
    return FileFate(key=file.key, fate="removed", detail="it had made way" if file.in_the_way else "")
