"""The sweep: what nobody will finish goes, by owner, never by age alone, and in two passes.

Uploads of ended jobs are aborted; uploads without an owner only when two sweeps saw them, far apart. Ended
jobs give up replaced files that were retained, and at last their folder.
Source: commit protocol, "Orphans", and architecture, rule 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from storage_core.clock import Clock, SystemClock
from storage_core.commit import layout
from storage_core.commit.cleanup import clean_up
from storage_core.commit.codec import encode
from storage_core.commit.ending import remove_replaced
from storage_core.commit.folder import JobFolder, find
from storage_core.commit.lease import LeaseState
from storage_core.commit.orphans import EVERYTHING, Judge, SweepAction, UploadFate, UploadFilter, listed
from storage_core.commit.parallel import Progress, in_parallel, no_progress
from storage_core.commit.phase import TERMINAL
from storage_core.commit.plan import read_plan
from storage_core.commit.records import Ended, SweepState
from storage_core.commit.revert import take_back
from storage_core.commit.summary import JobSummary, list_jobs
from storage_core.commit.upload_cost import UploadFigures, figures_by_action, figures_of, measured
from storage_core.commit.work import JobWork
from storage_core.errors import ObjectNotFoundError
from storage_core.failpoints import step
from storage_core.ids import JobId, JobName, split_job_id
from storage_core.settings import Settings, load_settings
from storage_core.stores import Store, open_store

MAX_STAGED: Final = 50_000
"""How many ownerless uploads one sweep remembers for the next."""


class JobFate(msgspec.Struct, frozen=True, kw_only=True):
    """An ended job, and what the sweep takes of it."""

    job_id: JobId
    action: str


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep found, and did unless it was a dry run.

    Attributes:
        uploads: Those that were asked for.
        total: What they add up to.
        by_action: The same, by what becomes of them.
        jobs: Ended jobs of which something was taken.
    """

    destination: str
    dry_run: bool
    uploads: tuple[UploadFate, ...]
    total: UploadFigures
    by_action: dict[SweepAction, UploadFigures]
    jobs: tuple[JobFate, ...]


def sweep_uploads(
    destination: str,
    *,
    wanted: UploadFilter = EVERYTHING,
    dry_run: bool = True,
    measure: Collection[SweepAction] = (),
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Sweep a destination.

    Args:
        destination: Its uploads only: `dataset1` never touches `dataset10`.
        wanted: Sweep only these uploads, and no job's folder. What a job may still need is kept all the same.
        dry_run: Tell what would be done and change nothing; the default.
        measure: Of uploads with these actions, ask the store for the bytes that its listing does not tell: a
            request an upload.
        settings: `orphan_age_s` and `tombstone_s` count; from the environment by default.
        clock: The machine's by default.
        progress: Hears how far long steps are; of a listing, whose end nobody knows, the total is 0.

    Raises:
        InvalidInputError: The destination or the filter cannot be.
        LockgateError: The store said no, or gave no answer; the sweep stopped there, and a later one goes on.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    progress = progress or no_progress
    store, folder = open_store(destination, settings), wanted.folder
    with step("sweep"):
        jobs = {job.job_id: job for job in list_jobs(destination, settings=settings, clock=clock)}
        state = find(store, SweepState, layout.SWEEP_STATE) or SweepState(seen={})
        judge = Judge(store, jobs, state.seen, settings, clock.now_s())
        judged = ((info, judge.judge(info)) for info in listed(store, folder, progress))
        uploads = tuple(fate for info, fate in judged if wanted.admits(info, fate.owner, judge.now_s))
        uploads = tuple(measured(store, uploads, measure, settings=settings, progress=progress))
        if not dry_run:
            orphans = [fate for fate in uploads if fate.action is SweepAction.ABORT]
            _abort(store, orphans, settings, progress)
            for fate in orphans:
                judge.ownerless.pop(fate.name, None)
            _remember(store, state, judge.ownerless, folder)
        ended = _sweep_jobs(store, jobs, settings, clock, dry_run=dry_run) if wanted == EVERYTHING else ()
        return SweepReport(
            destination=store.url,
            dry_run=dry_run,
            uploads=uploads,
            total=figures_of(uploads, settings),
            by_action=figures_by_action(uploads, settings),
            jobs=tuple(ended),
        )


def _abort(store: Store, fates: Sequence[UploadFate], settings: Settings, progress: Progress) -> None:
    def abort(fate: UploadFate) -> None:
        store.abort_upload(fate.key, fate.upload_id)

    for done, _ in enumerate(in_parallel(abort, fates, settings.parallelism), start=1):
        progress("abort uploads", done, len(fates))


def _remember(store: Store, state: SweepState, ownerless: dict[str, float], folder: str) -> None:
    """Write down for the next sweep what has no owner; of what this one did not look at, what it knew."""
    elsewhere = {name: first_s for name, first_s in state.seen.items() if not name.startswith(folder)}
    seen = {**elsewhere, **ownerless}
    if seen or state.seen:
        # Bounded: what is not remembered is seen for the first time by the next sweep.
        store.put(layout.SWEEP_STATE, encode(SweepState(seen=dict(islice(seen.items(), MAX_STAGED)))))


def _sweep_jobs(
    store: Store, jobs: dict[JobId, JobSummary], settings: Settings, clock: Clock, *, dry_run: bool
) -> Iterator[JobFate]:
    newest: dict[JobName, int] = {}
    for job in jobs:
        name, generation = split_job_id(job)
        newest[name] = max(generation, newest.get(name, 0))
    for job, summary in jobs.items():
        folder = JobFolder(store, job)
        name, generation = split_job_id(job)
        if summary.is_remnant:
            if not dry_run:
                _remove_folder(folder)
            yield JobFate(job_id=job, action="remove the rest of an old folder")
            continue
        ended = next((mark for mark in folder.ended() if mark is not None), None)
        if summary.phase not in TERMINAL or summary.record is None or ended is None:
            continue
        work = JobWork(folder=folder, job=summary.record, settings=settings, clock=clock)
        yield from _finish_ended(work, summary, ended, dry_run=dry_run)
        # The newest generation's folder stays: the next run of the name counts on from it.
        if clock.now_s() - ended.ended_s >= settings.tombstone_s and generation < newest[name]:
            if not dry_run:
                _remove_folder(folder)
            yield JobFate(job_id=job, action="remove the folder of an older generation")


def _finish_ended(work: JobWork, summary: JobSummary, ended: Ended, *, dry_run: bool) -> Iterator[JobFate]:
    """Do what an ended job left for later; its lease goes last, so it says whether there is something."""
    if summary.lease is LeaseState.UNKNOWN or work.clock.now_s() < ended.retained_until_s:
        return
    if ended.retained_until_s and ended.ended == "committed":
        action = "delete replaced files whose retention is over"
    elif ended.retained_until_s:
        action = "look once more for files of a reverted job"
    else:
        action = "finish the clean-up of an ended job"
    if not dry_run:
        if ended.retained_until_s:
            _use_the_plan_once_more(work, ended)
        clean_up(work.folder, work.job, work.settings)
    yield JobFate(job_id=work.job.job_id, action=action)


def _use_the_plan_once_more(work: JobWork, ended: Ended) -> None:
    decision = work.folder.decision()
    try:
        plan = read_plan(work.folder, (decision.plan if decision is not None else None) or "none")
    except ObjectNotFoundError:
        return  # another sweep is ahead of this one
    if ended.ended == "committed":
        remove_replaced(work, plan)
    else:
        take_back(work, plan)


def _remove_folder(folder: JobFolder) -> None:
    """Remove a job's folder, its identity first: what is left without it is known for a remnant."""
    folder.store.delete(folder.key("job.json"))
    for page in folder.store.pages(folder.prefix):
        folder.store.delete_many([info.key for info in page])
