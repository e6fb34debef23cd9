"""Recovery: finish, resume or abort jobs whose driver is gone, as the decision table requires.

Several recoveries may run at the same time.

Source: commit protocol, "Recovery".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.decide.decision import decide_abort
from lockgate.storage_core.commit.decide.task_selection import choose, chosen_digest
from lockgate.storage_core.commit.job_events import EventName, acting_as, record_event
from lockgate.storage_core.commit.job_summary import receipt_of, summarise
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState, own_journal
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.replaced_files import not_deleted
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.publish.table_projection import and_behind
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.phase import TERMINAL, UNDECIDED, JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction, choose_action
from lockgate.storage_core.commit.setup.capabilities import with_probed_capabilities
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    FencedError,
    InvalidInputError,
    LeaseHeldError,
    LockgateError,
    MalformedRecordError,
    ObjectNotFoundError,
    SafeModeError,
    TurnBusyError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, new_token
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store

JOBS_AT_ONCE: Final = 4
"""Jobs that one process recovers at once, each with as many parallel requests as the settings allow."""

PERMANENT_ERRORS: Final = (
    AccessDeniedError,
    InvalidInputError,
    MalformedRecordError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
"""Errors that the next recovery would meet again."""

LEAVE_ERRORS: Final = (FencedError, LeaseHeldError, SafeModeError)
"""Errors after which the job is left alone: another process has it, or the journal is in safe mode."""


class JobAt(msgspec.Struct, frozen=True, order=True):
    """A job and its destination."""

    destination: str
    job_id: JobId


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery did with one job.

    Attributes:
        destination: URL of the destination.
        found: Phase before; None if the markers cannot be read.
        ended: Phase after; None if nothing could be done.
        detail: Reason or error, for people.
        needs_an_operator: Whether nothing was changed and no later recovery will: markers contradict each
            other or cannot be read, or the store denies access.
        artefacts: Blob job id of the job's artefacts if the job has ended: the caller deletes these blobs.
            Empty otherwise.
    """

    destination: str
    job_id: JobId
    found: JobPhase | None
    lease: JobLeaseState
    action: RecoveryAction
    ended: JobPhase | None
    receipt: Receipt | None = None
    detail: str = ""
    needs_an_operator: bool = False
    artefacts: str = ""


def recover_job(
    destination: str,
    job_id: str,
    *,
    dry_run: bool = False,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> RecoveryResult:
    """Recover one job from its records in the store. Its driver and other recoveries may run meanwhile.

    Args:
        destination: Destination of the job.
        job_id: Id of the job.
        dry_run: Return what would be done, and change nothing.

    Raises:
        ObjectNotFoundError: There is no such job.
        OutcomeUnknownError: The state of a file or a marker is not known; nothing was deleted; try again.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    store = open_store(destination, settings)
    folder = JobFolder(store, JobId(job_id))
    lease, watched = JobLeaseState.UNKNOWN, ""
    with step("recover"):
        try:
            record = folder.job()  # first, so that nothing is written to a mistyped destination
            folder = JobFolder(with_probed_capabilities(store, settings, clock), folder.job_id)
            leases = LeasesByJob(settings, clock)
            view, found = leases.look(folder, record), folder.phase()
            if view.state is JobLeaseState.OVERDUE and found in UNDECIDED:
                if dry_run:
                    watched = f", if its lease is not renewed within {view.lapses_in_s:.0f} s"
                    view = replace(view, state=JobLeaseState.LAPSED)
                else:
                    view = leases.look_again(folder, record, view, "recovery")
                    found = folder.phase()
            lease = view.state
        except MalformedRecordError as error:
            is_aside = is_quarantined(folder)
            return RecoveryResult(
                destination=store.url,
                job_id=folder.job_id,
                found=JobPhase.QUARANTINED if is_aside else None,
                lease=lease,
                action=RecoveryAction.LEAVE if is_aside else RecoveryAction.REFUSE,
                ended=JobPhase.QUARANTINED if is_aside else None,
                detail=str(error),
                needs_an_operator=not is_aside,
            )
        action, detail = choose_action(
            found,
            lease,
            on_lapse=record.spec.on_lapse,
            is_young=lambda: _younger_than(folder, settings.orphan_age_s, clock),
        )
        detail += watched
        if view.unread and found in UNDECIDED:
            detail = f"{detail} ({view.unread})"
    if action is not RecoveryAction.LEAVE:
        context = CommitContext(
            folder=folder, job=record, settings=settings, clock=clock, progress=progress or no_progress
        )
        try:
            is_decided = found not in UNDECIDED
            with _lease(folder, settings, clock, is_decided=is_decided, dry_run=dry_run) as check:
                if not dry_run:
                    with acting_as("recovery"):
                        detail = _logged(context, action, detail, found, check)
        except LEAVE_ERRORS as error:
            action, detail = RecoveryAction.LEAVE, str(error)
    ended = folder.phase()
    has_ended = ended in TERMINAL and not dry_run
    return RecoveryResult(
        destination=store.url,
        job_id=folder.job_id,
        found=found,
        lease=lease,
        action=action,
        ended=ended,
        receipt=receipt_of(folder),
        detail=detail,
        artefacts=record.spec.artefacts.job_id if record.spec.artefacts is not None and has_ended else "",
    )


def recover_all(
    destination: str,
    *,
    dry_run: bool = False,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress = no_progress,
) -> Iterator[RecoveryResult]:
    """Recover every job of a destination that is not done; see `recover_jobs`."""
    settings, clock = settings or load_settings(), clock or SystemClock()
    store = open_store(destination, settings)
    # All at first, so that their leases are watched together and not one after another.
    found = [summarise(store, job, settings=settings, clock=clock) for job in list_job_folders(store).others]
    seen = {summary.job_id: summary for summary in found if summary.needs_recovery}
    jobs = [JobAt(store.url, job_id) for job_id in seen]
    for result in recover_jobs(jobs, dry_run=dry_run, settings=settings, clock=clock, progress=progress):
        if result.found is not None:
            yield result
        else:  # its recovery has failed
            before = seen[result.job_id]
            yield msgspec.structs.replace(result, found=before.phase, lease=before.lease)


def recover_jobs(
    jobs: Collection[JobAt],
    *,
    dry_run: bool = False,
    settings: Settings,
    clock: Clock | None = None,
    progress: Progress = no_progress,
) -> Iterator[RecoveryResult]:
    """Recover jobs, several at once; the failure of one does not stop the others.

    Yields:
        The result of each job when it is done; `detail` has the message if it could not be recovered.
    """
    recover = partial(_recover_one, dry_run=dry_run, settings=settings, clock=clock)
    results = in_parallel(recover, jobs, min(JOBS_AT_ONCE, settings.near_calls))
    for done, result in enumerate(results, start=1):
        progress("recover", done, len(jobs))
        yield result


def failed_recovery(job: JobAt, error: LockgateError) -> RecoveryResult:
    """Return the result for a job whose recovery has failed."""
    remedy = ""
    if isinstance(error, ObjectNotFoundError):
        remedy = f"; if it was deleted by hand, update the journal: `lockgate jobs rescan {job.destination}`"
    return RecoveryResult(
        destination=job.destination,
        job_id=job.job_id,
        found=None,
        lease=JobLeaseState.UNKNOWN,
        action=RecoveryAction.LEAVE,
        ended=None,
        detail=f"{type(error).__name__}: {error}{remedy}",
        needs_an_operator=isinstance(error, PERMANENT_ERRORS),
    )


def _recover_one(job: JobAt, *, dry_run: bool, settings: Settings, clock: Clock | None) -> RecoveryResult:
    try:
        return recover_job(job.destination, job.job_id, dry_run=dry_run, settings=settings, clock=clock)
    except LockgateError as error:
        return failed_recovery(job, error)


def is_quarantined(folder: JobFolder) -> bool:
    """Return whether a job is in quarantine, even if its `job.json` cannot be read."""
    try:
        return folder.phase() is JobPhase.QUARANTINED
    except MalformedRecordError:
        return False


def _lease(
    folder: JobFolder, settings: Settings, clock: Clock, *, is_decided: bool, dry_run: bool
) -> AbstractContextManager[Callable[[], None]]:
    journal = own_journal(settings, clock)
    if journal is None:
        return nullcontext(lambda: None)
    from lockgate.storage_core.commit.recovery.lease_takeover import recovery_lease  # noqa: PLC0415 - SQLAlchemy: half a second

    return recovery_lease(
        journal, folder, settings=settings, clock=clock, is_decided=is_decided, dry_run=dry_run
    )


def _logged(
    context: CommitContext, action: RecoveryAction, detail: str, found: JobPhase, check: Callable[[], None]
) -> str:
    """Act, and have the job's event log say so, except for a mere clean-up."""
    if action is RecoveryAction.CLEAN_UP:
        return _act(context, action, detail, check)

    def log(event: EventName, phase: JobPhase, text: str) -> None:
        record_event(
            context.folder,
            context.job,
            event,
            context.settings,
            context.clock,
            phase=str(phase),
            detail=f"{action}: {text}",
        )

    log("recovery began", found, detail)
    try:
        detail = _act(context, action, detail, check)
    except LockgateError as error:
        log("recovery ended", found, f"{type(error).__name__}: {error}")
        raise
    log("recovery ended", context.folder.phase(), detail)
    return detail


def _act(context: CommitContext, action: RecoveryAction, detail: str, check: Callable[[], None]) -> str:
    match action:
        case RecoveryAction.ABORT:
            check()  # raises if a driver has taken the job over meanwhile
            decide_abort(context.folder, reason=f"recovery: {detail}", token=new_token(), clock=context.clock)
            roll_forward(context)
        case RecoveryAction.RESUME:
            return _resume(context)
        case RecoveryAction.ROLL_FORWARD | RecoveryAction.CLEAN_UP:
            roll_forward(context)
            if left := and_behind(context, not_deleted(context.report)):
                return f"{detail}; {left}"
        case _:
            pass
    return detail


def _resume(context: CommitContext) -> str:
    """Commit the job if all its tasks have committed; otherwise its driver must run again."""
    job = attach_job(context.store.url, context.job.job_id, settings=context.settings, clock=context.clock)
    if job.expected() is None:
        return "its task list is not known: run its driver again, or abort it"
    try:
        chosen = choose(context.folder, job.job_attempt)
    except ConflictError as error:
        return f"{error}; run its driver again"
    if context.job.spec.audit and context.folder.audit(chosen_digest(chosen)) is None:
        return "all its tasks have committed and its audit has not run: run its driver again"
    try:
        job.commit()
    except (ConflictError, TurnBusyError) as error:
        return str(error)
    return "all its tasks had committed"


def _younger_than(folder: JobFolder, age_s: float, clock: Clock) -> bool:
    newest = max(
        (info.modified_s for page in folder.store.pages(folder.prefix) for info in page), default=0.0
    )
    return clock.now_s() - newest < age_s
