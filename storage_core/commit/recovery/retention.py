"""Sweep ended jobs: finish their clean-up, revert late completions, delete folders that nothing needs.

Source: commit protocol, steps 8 and 9, and "Revert".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job_summary import JobSummary
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.publish.cleanup import clean_up, delete_pages
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.replaced_files import not_deleted
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.publish.rollback import revert_plan
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.generations import (
    EndedGeneration,
    is_over,
    record_end,
    recorded_end,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import JobListing
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.staged_files import drop_temporary, jobs_with_temporary
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId, job_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store

KEPT_FOLDERS: Final = 1_000
"""Ended jobs whose folders are kept for `tombstone_s`, the newest ones; others go after `orphan_age_s`."""


class SweptJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the sweep does with a job, or why it cannot."""

    job_id: JobId
    action: str


def sweep_ended_jobs(
    store: Store,
    listing: JobListing,
    summaries: dict[JobId, JobSummary],
    settings: Settings,
    clock: Clock,
    *,
    dry_run: bool,
) -> Iterator[SweptJob]:
    """Sweep ended jobs; the failure of one does not stop the others.

    Args:
        store: Store, opened at the destination.
        listing: Jobs of the destination at the beginning of the sweep.
        summaries: Summaries of the jobs that are not done.
        settings: Settings, of which `tombstone_s` and `orphan_age_s` are used.
        clock: Clock of the retention times.
        dry_run: Yield what would be done, and change nothing.
    """
    with_temporary = jobs_with_temporary(store)
    for job in listing.jobs:
        try:
            if job in summaries:
                yield from _finish(store, summaries[job], settings, clock, dry_run=dry_run)
            if job in listing.done and job in with_temporary:
                if not dry_run:
                    drop_temporary(store, job)
                yield SweptJob(job_id=job, action="delete what a killed attempt wrote after the job's end")
        except LockgateError as error:
            yield SweptJob(job_id=job, action=f"left as it is: {error}")
    ages_s = _ages_of_old(store, listing, settings, clock.now_s())
    delete = partial(_delete_old, store, ages_s, clock, dry_run)
    yield from filter(None, in_parallel(delete, ages_s, settings.near_calls))


def _finish(
    store: Store,
    summary: JobSummary,
    settings: Settings,
    clock: Clock,
    *,
    dry_run: bool,
) -> Iterator[SweptJob]:
    folder = JobFolder(store, summary.job_id)
    if summary.is_partly_deleted:
        yield from _delete_rest(folder, dry_run)
        return
    if not summary.has_ended or summary.record is None or summary.lease is JobLeaseState.UNKNOWN:
        return  # the clean-up of an ended job deletes its lease last: without one, it is complete
    ended = next((mark for mark in folder.ended() if mark is not None), None)
    if ended is None or clock.now_s() < ended.retained_until_s:
        return
    if ended.retained_until_s:
        action = "revert files of a reverted job that were completed late"
    else:
        action = "finish the clean-up of an ended job"
    if not dry_run:
        context = CommitContext(folder=folder, job=summary.record, settings=settings, clock=clock)
        if not ended.retained_until_s:
            roll_forward(context)
        else:
            _revert_again(context)
            clean_up(context.folder, context.job, context.settings)
        if left := not_deleted(context.report):
            action = f"{action}: {left}"
    yield SweptJob(job_id=summary.job_id, action=action)


def _revert_again(context: CommitContext) -> None:
    decision = context.folder.decision()
    try:
        plan = read_plan(context.folder, (decision.plan if decision is not None else None) or "none")
    except ObjectNotFoundError:
        return  # another sweep has done it
    # A later generation may have published the same file under the same name since.
    revert_plan(context, plan, exclude=DestinationLog(context.store).manifest().files)


def _ages_of_old(store: Store, listing: JobListing, settings: Settings, now_s: float) -> dict[JobId, float]:
    """Return the jobs whose folders may be deleted, each with the age from which on.

    A folder is needed while the log's newest checkpoint does not cover its job's turns, because a repair of
    the log reads it, and while Airflow's events of the job are to be emitted.
    """
    newest = sorted(listing.ended_s, key=listing.ended_s.__getitem__, reverse=True)
    least_s = min(settings.orphan_age_s, settings.tombstone_s)
    ages_s = {
        job: settings.tombstone_s if number < KEPT_FOLDERS else least_s for number, job in enumerate(newest)
    }
    ages_s = {job: age_s for job, age_s in ages_s.items() if now_s - listing.ended_s[job] >= age_s}
    if ages_s:
        log = DestinationLog(store).read()
        needed = {outcome.job_id for outcome in log.outcomes}
        if log.open is not None:
            needed.add(log.open.claim.job_id)
        for page in store.pages(layout.ASSET_EVENTS):
            needed.update(JobId(info.key.rpartition("/")[2].removesuffix(".json")) for info in page)
        ages_s = {job: age_s for job, age_s in ages_s.items() if job not in needed}
    return ages_s


def _delete_old(
    store: Store, ages_s: dict[JobId, float], clock: Clock, dry_run: bool, job: JobId
) -> SweptJob | None:
    """Record the end of a job's generation, then delete its folder."""
    folder = JobFolder(store, job)
    try:
        record, ended = folder.job(), next((mark for mark in folder.ended() if mark is not None), None)
        if ended is None or clock.now_s() - ended.ended_s < ages_s[job] or folder.has_lease():
            return None  # an ended job with a lease still has something to delete
        if not dry_run:
            if not is_over(store, job):
                record_end(store, EndedGeneration(job_id=job, job=record, ended=ended))
            _delete_earlier_ends(folder, record, ended)
            _delete_folder(folder)
    except LockgateError as error:
        return SweptJob(job_id=job, action=f"left as it is: {error}")
    return SweptJob(job_id=job, action="delete the folder of an ended job")


def _delete_earlier_ends(folder: JobFolder, record: JobRecord, ended: Ended) -> None:
    """Delete the ends of generations whose files no later one has to replace; see `refuse_if_compacted`."""
    if record.generation == 1:
        return
    before = job_id(record.name, record.generation - 1)
    if ended.ended == "committed" and record.spec.rerun == "replace":
        pages = folder.store.pages(
            layout.ended_generations(record.name), after=layout.ended_generation(folder.job_id)
        )
        delete_pages(folder, ([info.key for info in page] for page in pages))
    elif (end := recorded_end(folder.store, before)) is not None and end.phase is JobPhase.FAILED:
        folder.store.delete(layout.ended_generation(before))


def _delete_rest(folder: JobFolder, dry_run: bool) -> Iterator[SweptJob]:
    """Delete the rest of a folder, if its end is recorded or a listing, too, finds no `job.json` in it."""
    names = {info.key for page in folder.store.pages(folder.prefix) for info in page}
    if folder.key("job.json") in names and not is_over(folder.store, folder.job_id):
        return
    if not dry_run:
        _delete_folder(folder)
    yield SweptJob(job_id=folder.job_id, action="delete the rest of an old folder")


def _delete_folder(folder: JobFolder) -> None:
    """Delete a job's folder, `job.json` first: a folder without it is known to be partly deleted."""
    folder.store.delete(folder.key("job.json"))
    delete_pages(folder, ([info.key for info in page] for page in folder.store.pages(folder.prefix)))
