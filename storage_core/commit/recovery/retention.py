"""What ended jobs left for later: retained files, a second look after a revert, folders of old generations.

Source: commit protocol, steps 8 and 9, and "Revert".
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job_summary import JobSummary
from lockgate.storage_core.commit.leases.protocol import LeaseState
from lockgate.storage_core.commit.publish.cleanup import clean_up
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.publish.displaced_files import files_aside
from lockgate.storage_core.commit.publish.finalization import remove_replaced
from lockgate.storage_core.commit.publish.rollback import take_back
from lockgate.storage_core.commit.records.job import Ended
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_listing import Roll
from lockgate.storage_core.commit.records.phase import TERMINAL
from lockgate.storage_core.commit.temporary import drop_temporary, jobs_with_temporary
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId, JobName, split_job_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store


class JobFate(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and what the sweep takes of it, or why it cannot."""

    job_id: JobId
    action: str


def sweep_ended(
    store: Store,
    roll: Roll,
    read: dict[JobId, JobSummary],
    settings: Settings,
    clock: Clock,
    *,
    dry_run: bool,
) -> Iterator[JobFate]:
    """Do what ended jobs left for later; one that fails does not stop the others.

    Args:
        store: Of the destination.
        roll: Its jobs, as they stood when the sweep began.
        read: Those that are not done, as they were read then.
        settings: `tombstone_s` counts.
        clock: Tells whether a time is over.
        dry_run: Tell what would be done and change nothing.
    """
    newest: dict[JobName, int] = {}
    for job in roll.jobs:
        name, generation = split_job_id(job)
        newest[name] = max(generation, newest.get(name, 0))
    late = jobs_with_temporary(store)
    for job in roll.jobs:
        name, generation = split_job_id(job)
        is_old = generation < newest[name]
        ended = job in roll.done or (job in read and read[job].phase in TERMINAL)
        try:
            if job in read:
                yield from _finish(store, read[job], settings, clock, dry_run=dry_run)
            if job in roll.done and job in late:
                if not dry_run:
                    drop_temporary(store, job)
                yield JobFate(job_id=job, action="remove what a killed attempt wrote after its end")
            if ended and is_old:
                yield from _bury(JobFolder(store, job), settings, clock, dry_run=dry_run)
        except LockgateError as error:
            yield JobFate(job_id=job, action=f"left as it is: {error}")


def _finish(
    store: Store, summary: JobSummary, settings: Settings, clock: Clock, *, dry_run: bool
) -> Iterator[JobFate]:
    folder = JobFolder(store, summary.job_id)
    if summary.is_remnant:
        if not dry_run:
            _remove_folder(folder)
        yield JobFate(job_id=summary.job_id, action="remove the rest of an old folder")
        return
    if summary.phase not in TERMINAL or summary.record is None or summary.lease is LeaseState.UNKNOWN:
        return  # an ended job gives its lease up last: without one there is nothing left to do
    ended = next((mark for mark in folder.ended() if mark is not None), None)
    if ended is None or clock.now_s() < ended.retained_until_s:
        return
    if ended.retained_until_s and ended.ended == "committed":
        action = "delete replaced files whose retention is over"
    elif ended.retained_until_s:
        action = "look once more for files of a reverted job"
    else:
        action = "finish the clean-up of an ended job"
    if not dry_run:
        work = JobWork(folder=folder, job=summary.record, settings=settings, clock=clock)
        if ended.retained_until_s:
            _use_the_plan_once_more(work, ended)
        clean_up(work.folder, work.job, work.settings)
    yield JobFate(job_id=summary.job_id, action=action)


def _use_the_plan_once_more(work: JobWork, ended: Ended) -> None:
    decision = work.folder.decision()
    try:
        plan = read_plan(work.folder, (decision.plan if decision is not None else None) or "none")
    except ObjectNotFoundError:
        return  # another sweep is ahead of this one
    if ended.ended == "committed":
        remove_replaced(work, plan)
    else:
        # A later generation may have published the same file under the same name since.
        take_back(work, plan, spare=DestinationLog(work.store).manifest().files)


def _bury(folder: JobFolder, settings: Settings, clock: Clock, *, dry_run: bool) -> Iterator[JobFate]:
    """Remove an older generation's folder when its time is over; the newest one's stays, to count on from."""
    ended = next((mark for mark in folder.ended() if mark is not None), None)
    if ended is None or clock.now_s() - ended.ended_s < settings.tombstone_s:
        return
    if next(files_aside(folder), None) is not None:
        action = f"keep its folder: files that made way lie in {folder.key('aside/')}; take them out by hand"
    else:
        action = "remove the folder of an older generation"
        if not dry_run:
            _remove_folder(folder)
    yield JobFate(job_id=folder.job_id, action=action)


def _remove_folder(folder: JobFolder) -> None:
    """Remove a job's folder, its identity first: what is left without it is known for a remnant."""
    folder.store.delete(folder.key("job.json"))
    for page in folder.store.pages(folder.prefix):
        folder.store.delete_many([info.key for info in page])
