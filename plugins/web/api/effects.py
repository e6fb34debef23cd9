"""Effects of the actions: what each would do now, and how `lockgate ui` does it in its own process.

A dry run calls what the command line calls with `dry_run`, so both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from lockgate.plugins.web.access import ActionName, ActionRequest
from lockgate.storage_core.blobs.open_blobs import delete_ended, open_blobs
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import UNDECIDED, JobPhase
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.commit.uploads.upload_owner import SweepAction
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.printable import printable
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store

MAX_LINES: Final = 200
"""Lines of an answer; a last line counts the others."""

_NEEDS: Final[dict[ActionName, tuple[str, ...]]] = {
    "recover": ("destination", "job_id"),
    "abort": ("destination", "job_id"),
    "revert": ("destination", "turn"),
    "sweep-uploads": ("destination",),
}


class Effect(NamedTuple):
    """What an action did, or would do: one sentence, and one line for each thing."""

    text: str
    lines: tuple[str, ...] = ()


def check_request(action: ActionName, request: ActionRequest) -> None:
    """Raise if an action lacks what it needs.

    Raises:
        InvalidInputError: A field is missing.
    """
    missing = [name for name in _NEEDS.get(action, ()) if not getattr(request, name)]
    if missing:
        raise InvalidInputError(f"{action}: {' and '.join(missing)} must be given; nothing was done")


def carry_out(
    action: ActionName,
    request: ActionRequest,
    settings: Settings,
    *,
    dry_run: bool,
    progress: Progress = no_progress,
) -> Effect:
    """Do an action, or find what it would do now.

    Args:
        action: Name of the action.
        request: Its fields; see `check_request`. Its own `dry_run` is ignored.
        settings: Settings of this process.
        dry_run: Change nothing.
        progress: Receives the progress of long steps.
    """
    match action:
        case "recover":
            return _recover(request, settings, dry_run, progress)
        case "abort":
            return (_would_abort if dry_run else _abort)(request, settings, progress)
        case "revert":
            return _revert(request, settings, dry_run)
        case "sweep-uploads":
            return _sweep_uploads(request, settings, dry_run, progress)
        case "sweep-blobs":
            return _sweep_blobs(settings, dry_run, progress)
        case "leave-safe-mode":
            return _leave_safe_mode(request.reason.strip(), settings, dry_run)


def _recover(request: ActionRequest, settings: Settings, dry_run: bool, progress: Progress) -> Effect:
    destination, job_id = request.destination or "", request.job_id or ""
    found = recover_job(destination, job_id, dry_run=dry_run, settings=settings, progress=progress)
    if found.artefacts:
        delete_ended(found.artefacts, settings)
    detail = f": {found.detail}" if found.detail else ""
    line = printable(f"{found.job_id}: {found.action}{detail}")
    phase = found.found or "unreadable"
    if dry_run:
        return Effect(f"The job is {phase}; recovery would: {found.action}.", (line,))
    return Effect(f"The job was {phase} and is {found.ended or 'unreadable'}.", (line,))


def _abort(request: ActionRequest, settings: Settings, progress: Progress) -> Effect:
    destination, job_id = request.destination or "", request.job_id or ""
    job = attach_job(destination, job_id, settings=settings, progress=progress)
    before, after = job.phase(), job.abort(_reason(request))
    if job.spec.artefacts is not None:
        delete_ended(job.spec.artefacts.job_id, settings)
    if after not in {JobPhase.ABORTING, JobPhase.FAILED}:
        raise ConflictError(
            f"job {job_id} at {destination} is {after}: it was not aborted, because its commit is "
            "decided; recover it"
        )
    return Effect(f"The job was {before} and is {after}.")


def _would_abort(request: ActionRequest, settings: Settings, _: Progress) -> Effect:
    clock = SystemClock()
    store = with_recorded_capabilities(open_store(request.destination or "", settings), settings, clock)
    folder = JobFolder(store, JobId(request.job_id or ""))
    record, phase = folder.job(), folder.phase()
    if phase not in UNDECIDED and phase is not JobPhase.QUARANTINED:
        return Effect(f"The job is {phase}: it is decided, so an abort would change nothing.")
    lease = LeasesByJob(settings, clock).look(folder, record).state
    lines = [f"decide to abort job {folder.job_id} (lease: {lease}), for the reason {_reason(request)!r}"]
    lines += [
        f"delete what task {found.task_id}, attempt {found.attempt_id} wrote"
        for found, *_ in islice(folder.pending_sets(), MAX_LINES)
    ]
    return Effect(f"The job is {phase}; an abort would delete everything that it wrote.", _bounded(lines))


def _reason(request: ActionRequest) -> str:
    return request.reason.strip() or "by hand"


def _revert(request: ActionRequest, settings: Settings, dry_run: bool) -> Effect:
    done = revert_to_turn(request.destination or "", request.turn or 0, dry_run=dry_run, settings=settings)
    change = done.difference
    lines = [f"live again: {file.key}" for file in change.added]
    lines += [f"live no more: {file.key}" for file in change.removed]
    added, removed = (
        f"{len(files):,} files with {'an unknown number of' if rows is None else format(rows, ',')} rows"
        for files, rows in ((change.added, change.rows_added), (change.removed, change.rows_removed))
    )
    job = "A job would make" if done.receipt is None else f"Job {done.receipt.job_id} made"
    text = f"{job} the files of turn {change.to_turn} live: {added} live again, {removed} live no more."
    return Effect(text, _bounded(lines))


def _sweep_uploads(request: ActionRequest, settings: Settings, dry_run: bool, progress: Progress) -> Effect:
    destination = request.destination or ""
    report = sweep_uploads(destination, dry_run=dry_run, settings=settings, progress=progress)
    aborted = [upload for upload in report.uploads if upload.action is SweepAction.ABORT]
    verb = "would abort" if dry_run else "aborted"
    lines = (
        *(f"{upload.key}, upload {upload.upload_id}: {upload.action}: {upload.reason}" for upload in aborted),
        *report.lines(),
    )
    kept = len(report.uploads) - len(aborted)
    return Effect(f"The sweep {verb} {len(aborted)} uploads and keeps {kept}.", _bounded(lines))


def _sweep_blobs(settings: Settings, dry_run: bool, progress: Progress) -> Effect:
    with open_blobs(settings) as blobs:
        # A dry run is a read with a time limit: it does not list the stores.
        report = blobs.sweep(dry_run=dry_run, orphans=False if dry_run else None, progress=progress)
    lines = [f"{what}: {number}" for what, number, _ in report.rows()]
    lines += [f"{blob.job_id}/{blob.blob_key}: {blob.why}" for blob in report.blobs]
    if dry_run:
        lines.append(
            "files that the journal does not know: found by the sweep itself, which lists the stores"
        )
    verb = "would delete" if dry_run else "deleted"
    text = f"The sweep {verb} {report.deleted.blobs} blobs, {report.deleted.size_bytes} bytes."
    return Effect(text, _bounded([*report.problems, *lines]))


def _leave_safe_mode(reason: str, settings: Settings, dry_run: bool) -> Effect:
    journal = configured_journal(settings)
    if journal is None:
        raise ConflictError("LOCKGATE_JOURNAL_URL=none: there is no journal; nothing was done")
    reasons = journal.status().safe_reasons
    if not dry_run:
        rearmed = leave_safe_mode(journal, reason)
        left = journal.status()
        if left.safe_since_s is not None:
            return Effect(f"The journal is still in safe mode: {left.why_safe}")
        return Effect(f"The journal left safe mode; the time limits of {rearmed or 0} leases restarted.")
    if not reasons:
        return Effect("The journal is not in safe mode.")
    if reason not in {one.reason for one in reasons} and (reason or len(reasons) > 1):
        names = ", ".join(one.reason for one in reasons)
        raise InvalidInputError(f"reason {reason!r}: the reasons for safe mode are {names}; name one of them")
    dropped = reason or reasons[0].reason
    lines = [
        f"{'drop' if one.reason == dropped else 'keep'} the reason {one.reason}: {one.text}"
        for one in reasons
    ]
    if len(reasons) > 1:
        return Effect("The journal would stay in safe mode, for the other reasons.", _bounded(lines))
    return Effect(
        "The journal would leave safe mode: the time limits of all leases would restart.", _bounded(lines)
    )


def _bounded(lines: Iterable[str]) -> tuple[str, ...]:
    every = list(lines)
    more = len(every) - MAX_LINES
    shown = [printable(line) for line in every[:MAX_LINES]]
    return (*shown, f"and {more} more") if more > 0 else tuple(shown)
