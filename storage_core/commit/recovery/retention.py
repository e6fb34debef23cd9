"""Sweep ended jobs: delete retained files, revert late completions, delete folders of old generations.

Source: commit protocol, steps 8 and 9, and "Revert".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job_summary import JobSummary
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.publish.cleanup import clean_up, delete_pages
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.replaced_files import not_deleted, remove_rest
from lockgate.storage_core.commit.publish.roll_forward import roll_forward
from lockgate.storage_core.commit.publish.rollback import revert_plan
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import JobListing
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.staged_files import drop_temporary, jobs_with_temporary
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId, JobName, split_job_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store

KEPT_GENERATIONS: Final = 100
"""Generations of a name that are kept for `tombstone_s`. Older ones go after `orphan_age_s`: every set-up of
the name lists those that are there."""


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
        settings: Settings, of which `tombstone_s` is used.
        clock: Clock of the retention times.
        dry_run: Yield what would be done, and change nothing.
    """
    newest: dict[JobName, int] = {}
    for job in listing.jobs:
        name, generation = split_job_id(job)
        newest[name] = max(generation, newest.get(name, 0))
    with_temporary = jobs_with_temporary(store)
    for job in listing.jobs:
        name, generation = split_job_id(job)
        is_old = generation < newest[name]
        has_ended = job in listing.done or (job in summaries and summaries[job].has_ended)
        try:
            if job in summaries:
                yield from _finish(store, summaries[job], settings, clock, dry_run=dry_run)
            if job in listing.done and job in with_temporary:
                if not dry_run:
                    drop_temporary(store, job)
                yield SweptJob(job_id=job, action="delete what a killed attempt wrote after the job's end")
            if has_ended and is_old:
                has_many = generation < newest[name] - KEPT_GENERATIONS
                age_s = settings.orphan_age_s if has_many else settings.tombstone_s
                yield from _delete_old(
                    JobFolder(store, job), min(age_s, settings.tombstone_s), clock, dry_run
                )
        except LockgateError as error:
            yield SweptJob(job_id=job, action=f"left as it is: {error}")


def _finish(
    store: Store, summary: JobSummary, settings: Settings, clock: Clock, *, dry_run: bool
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
    if ended.retained_until_s and ended.ended == "committed":
        action = "delete replaced files whose retention is over"
    elif ended.retained_until_s:
        action = "revert files of a reverted job that were completed late"
    else:
        action = "finish the clean-up of an ended job"
    if not dry_run:
        context = CommitContext(folder=folder, job=summary.record, settings=settings, clock=clock)
        if not ended.retained_until_s:
            roll_forward(context)
        else:
            _process_retained(context, ended)
            if not context.report.counts["undeleted"]:
                clean_up(context.folder, context.job, context.settings)
        if left := not_deleted(context.report):
            action = f"{action}: {left}"
    yield SweptJob(job_id=summary.job_id, action=action)


def _process_retained(context: CommitContext, ended: Ended) -> None:
    decision = context.folder.decision()
    name = decision.plan if decision is not None else None
    if ended.ended == "committed":
        remove_rest(context, name, retained=True)
        return
    try:
        plan = read_plan(context.folder, name or "none")
    except ObjectNotFoundError:
        return  # another sweep has done it
    # A later generation may have published the same file under the same name since.
    revert_plan(context, plan, exclude=DestinationLog(context.store).manifest().files)


def _delete_old(folder: JobFolder, age_s: float, clock: Clock, dry_run: bool) -> Iterator[SweptJob]:
    """Delete an older generation's folder some time after its end. The newest has the generation number."""
    ended = next((mark for mark in folder.ended() if mark is not None), None)
    if ended is None or clock.now_s() - ended.ended_s < age_s or folder.has_lease():
        return  # an ended job with a lease still has something to delete
    if not dry_run:
        _delete_folder(folder)
    yield SweptJob(job_id=folder.job_id, action="delete the folder of an older generation")


def _delete_rest(folder: JobFolder, dry_run: bool) -> Iterator[SweptJob]:
    """Delete what is left of a folder, if a listing, too, finds no `job.json` in it."""
    if any(info.key == folder.key("job.json") for page in folder.store.pages(folder.prefix) for info in page):
        return
    if not dry_run:
        _delete_folder(folder)
    yield SweptJob(job_id=folder.job_id, action="delete the rest of an old folder")


def _delete_folder(folder: JobFolder) -> None:
    """Delete a job's folder, `job.json` first: a folder without it is known to be partly deleted."""
    folder.store.delete(folder.key("job.json"))
    delete_pages(folder, ([info.key for info in page] for page in folder.store.pages(folder.prefix)))
