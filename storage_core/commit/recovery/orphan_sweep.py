"""The sweep: what nobody will finish goes, by owner, never by age alone, and in two passes.

Uploads of ended jobs are aborted; uploads without an owner only when two sweeps saw them, far apart. Ended
jobs give up replaced files that were retained, and at last their folder.
Source: commit protocol, "Orphans", and architecture, rule 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.job_summary import summarise
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job_folder import find
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.records.report import SweepState
from lockgate.storage_core.commit.recovery.retention import JobFate, sweep_ended
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.commit.uploads.upload_cost import (
    UploadTotals,
    measure_uploads,
    totals_by_action,
    upload_totals,
)
from lockgate.storage_core.commit.uploads.upload_owner import (
    EVERYTHING,
    SweepAction,
    UploadFate,
    UploadFilter,
    UploadOwnership,
    list_uploads,
)
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store

MAX_STAGED: Final = 50_000
"""How many ownerless uploads one sweep remembers for the next."""


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep found, and did unless it was a dry run.

    Attributes:
        uploads: Those that were asked for.
        total: What they add up to.
        by_action: The same, by what becomes of them.
        jobs: Ended jobs of which something was taken, or could not be.
    """

    destination: str
    dry_run: bool
    uploads: tuple[UploadFate, ...]
    total: UploadTotals
    by_action: dict[SweepAction, UploadTotals]
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
    store, folder = (
        with_recorded_capabilities(open_store(destination, settings), settings, clock),
        wanted.folder,
    )
    with step("sweep"):
        listing = list_job_folders(store)
        jobs = {job: summarise(store, job, settings=settings, clock=clock) for job in listing.others}
        state = find(store, SweepState, layout.SWEEP_STATE) or SweepState(seen={})
        ownership = UploadOwnership(store, jobs, listing.done, state.seen, settings, clock.now_s())
        judged = ((info, ownership.classify(info)) for info in list_uploads(store, folder, progress))
        uploads = tuple(fate for info, fate in judged if wanted.admits(info, fate.owner, ownership.now_s))
        uploads = tuple(measure_uploads(store, uploads, measure, settings=settings, progress=progress))
        if not dry_run:
            orphans = [fate for fate in uploads if fate.action is SweepAction.ABORT]
            _abort(store, orphans, settings, progress)
            for fate in orphans:
                ownership.ownerless.pop(fate.name, None)
            _remember(store, state, ownership.ownerless, folder)
        ended: Iterable[JobFate] = ()
        if wanted == EVERYTHING:
            ended = sweep_ended(store, listing, jobs, settings, clock, dry_run=dry_run)
        return SweepReport(
            destination=store.url,
            dry_run=dry_run,
            uploads=uploads,
            total=upload_totals(uploads, settings),
            by_action=totals_by_action(uploads, settings),
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
