"""The sweep: what nobody will finish goes, by owner, never by age alone, and in two passes.

Uploads of ended jobs are aborted; uploads without an owner only when two sweeps saw them, far apart. Ended
jobs give up replaced files that were retained, and at last their folder.
Source: commit protocol, "Orphans", and architecture, rule 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final

import msgspec

from storage_core.clock import Clock, SystemClock
from storage_core.commit import layout
from storage_core.commit.cleanup import clean_up
from storage_core.commit.codec import encode
from storage_core.commit.conflict import Owners
from storage_core.commit.ending import remove_replaced
from storage_core.commit.folder import JobFolder, find
from storage_core.commit.lease import LeaseState
from storage_core.commit.phase import TERMINAL, JobPhase
from storage_core.commit.plan import read_plan
from storage_core.commit.records import Ended, SweepState
from storage_core.commit.revert import take_back
from storage_core.commit.summary import JobSummary, list_jobs
from storage_core.commit.work import JobWork
from storage_core.errors import ObjectNotFoundError
from storage_core.failpoints import step
from storage_core.ids import JobId, JobName, split_job_id
from storage_core.settings import Settings, load_settings
from storage_core.stores import Store, UploadInfo, open_store

MAX_STAGED: Final = 50_000
"""How many ownerless uploads one sweep remembers for the next."""


class SweepAction(StrEnum):
    """What a sweep does with an upload."""

    KEEP = "keep"
    STAGE = "stage"
    """Ownerless, seen now: a later sweep aborts it if it is still there."""
    ABORT = "abort"


class UploadFate(msgspec.Struct, frozen=True, kw_only=True):
    """One open upload, whose it is, and what the sweep does with it."""

    key: str
    upload_id: str
    owner: JobId | None
    begun_s: float
    size: int | None
    action: SweepAction
    reason: str


class JobFate(msgspec.Struct, frozen=True, kw_only=True):
    """An ended job, and what the sweep takes of it."""

    job_id: JobId
    action: str


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep found, and did unless it was a dry run."""

    destination: str
    dry_run: bool
    uploads: tuple[UploadFate, ...]
    jobs: tuple[JobFate, ...]

    def count(self, action: SweepAction) -> int:
        """How many uploads met this action."""
        return sum(fate.action is action for fate in self.uploads)


def sweep_uploads(
    destination: str,
    *,
    dry_run: bool = True,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> SweepReport:
    """Sweep a destination.

    Args:
        destination: Its uploads only: `dataset1` never touches `dataset10`.
        dry_run: Tell what would be done and change nothing; the default.
        settings: `orphan_age_s` and `tombstone_s` count; from the environment by default.
        clock: The machine's by default.

    Raises:
        NotAppliedError: The store said no; the sweep stopped there, and a later one goes on.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    store = open_store(destination, settings)
    with step("sweep"):
        jobs = {job.job_id: job for job in list_jobs(destination, settings=settings, clock=clock)}
        state = find(store, SweepState, layout.SWEEP_STATE) or SweepState(seen={})
        sweep = _Sweep(store, jobs, state, settings, clock.now_s())
        uploads = tuple(sweep.judge(info) for page in store.upload_pages() for info in page)
        if not dry_run:
            for fate in uploads:
                if fate.action is SweepAction.ABORT:
                    store.abort_upload(fate.key, fate.upload_id)
            if sweep.staged or state.seen:
                # Bounded: what is not remembered is seen for the first time by the next sweep.
                seen = dict(islice(sweep.staged.items(), MAX_STAGED))
                store.put(layout.SWEEP_STATE, encode(SweepState(seen=seen)))
        ended = tuple(_sweep_jobs(store, jobs, settings, clock, dry_run=dry_run))
    return SweepReport(destination=store.url, dry_run=dry_run, uploads=uploads, jobs=ended)


@dataclass
class _Sweep:
    store: Store
    jobs: dict[JobId, JobSummary]
    state: SweepState
    settings: Settings
    now_s: float
    staged: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owners = Owners(self.store)
        self._somebody_writes = any(_may_write(job) for job in self.jobs.values())
        self._nested: dict[str, bool] = {}

    def judge(self, info: UploadInfo) -> UploadFate:
        owner = self._owners.owner(info.key)
        if self._is_of_a_nested_destination(info.key):
            action, reason = SweepAction.KEEP, "it lies in another destination, which has its own sweep"
        elif owner is None or owner not in self.jobs or self.jobs[owner].is_remnant:
            action, reason = self._ownerless(info)
        else:
            action, reason = self._owned(self.jobs[owner])
        return UploadFate(
            key=info.key,
            upload_id=info.upload_id,
            owner=owner,
            begun_s=info.begun_s,
            size=info.size,
            action=action,
            reason=reason,
        )

    def _is_of_a_nested_destination(self, key: str) -> bool:
        folders = key.split("/")[:-1]
        return any(self._is_destination("/".join(folders[:depth])) for depth in range(1, len(folders) + 1))

    def _is_destination(self, folder: str) -> bool:
        if folder not in self._nested:
            below = self.store.pages(f"{folder}/{layout.ROOT}", page_size=1)
            self._nested[folder] = next(iter(below), ()) != ()
        return self._nested[folder]

    def _owned(self, job: JobSummary) -> tuple[SweepAction, str]:
        if job.phase is None:
            return SweepAction.KEEP, "its job's records cannot be read"
        if job.phase in TERMINAL:
            return SweepAction.ABORT, f"its job has ended: {job.phase}"
        if job.phase is not JobPhase.OPEN:
            return SweepAction.KEEP, f"its job is decided ({job.phase}): recovery brings it to its end"
        if job.lease is LeaseState.LAPSED:
            return SweepAction.KEEP, "its job lapsed: recovery must decide first"
        return SweepAction.KEEP, f"its job is at work: {job.lease}"

    def _ownerless(self, info: UploadInfo) -> tuple[SweepAction, str]:
        name = f"{info.key}\n{info.upload_id}"
        first_s = self.state.seen.get(name)
        due = first_s is not None and self.now_s - first_s >= self.settings.orphan_age_s
        if due and not self._somebody_writes:
            return SweepAction.ABORT, "no owner, seen by two sweeps"
        self.staged[name] = self.now_s if first_s is None else first_s
        if due:
            return SweepAction.KEEP, "no owner, but a job on the destination may be writing it"
        return SweepAction.STAGE, "no owner: a later sweep takes it"


def _may_write(job: JobSummary) -> bool:
    """Tell whether an upload without an owner may be this job's."""
    if job.is_remnant or job.phase in TERMINAL:
        return False
    lapsed = job.phase is JobPhase.OPEN and job.lease is LeaseState.LAPSED
    # Without unique names its uploads carry no owner: until it is decided they may be named in its pending
    # sets, and a lapsed job can still be resumed.
    return not lapsed or job.record is None or not job.record.spec.unique_filenames


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
