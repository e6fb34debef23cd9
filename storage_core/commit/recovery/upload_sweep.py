"""Sweep of a destination: abort uploads that no job will complete, and delete what ended jobs left.

The owner decides, never the age alone. Uploads of ended jobs are aborted at once; uploads without an owner
after two sweeps have seen them, far enough apart, unless another tool may be at work.
Source: commit protocol, "Orphans", and architecture, rule 4.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.destination.kept_files import SweptHistory, sweep_history
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job_summary import summarise
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import Record, encode
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.job_listing import JobListing, list_job_folders
from lockgate.storage_core.commit.recovery.retention import SweptJob, sweep_ended_jobs
from lockgate.storage_core.commit.setup.capabilities import with_recorded_capabilities
from lockgate.storage_core.commit.uploads.upload_completion import NOT_ABOUT_THE_FILE
from lockgate.storage_core.commit.uploads.upload_cost import (
    UploadTotals,
    measure_uploads,
    totals_by_action,
    upload_totals,
)
from lockgate.storage_core.commit.uploads.upload_owner import (
    EVERYTHING,
    NO_OWNER,
    OpenUpload,
    SweepAction,
    UploadFilter,
    UploadOwnership,
    list_uploads,
)
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import NotAppliedError, StoreUnavailableError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store

LOG: Final = logging.getLogger("lockgate.sweep")
MAX_STAGED: Final = 50_000
"""Limit of the ownerless uploads that a sweep stores for the next one."""


class SweepState(Record, frozen=True, tag="sweep"):
    """`sweep.json`: times at which a sweep first saw each ownerless upload, by key and upload id."""

    seen: dict[str, float]


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep found and, unless it was a dry run, did.

    Attributes:
        uploads: Uploads that match the filter.
        total: Totals of these uploads.
        by_action: The same totals by action.
        jobs: Ended jobs of which something was, or could not be, deleted.
        history: Kept files that no kept turn has; None if the filter leaves them out.
    """

    destination: str
    dry_run: bool
    uploads: tuple[OpenUpload, ...]
    total: UploadTotals
    by_action: dict[SweepAction, UploadTotals]
    jobs: tuple[SweptJob, ...]
    history: SweptHistory | None = None

    def lines(self) -> Iterator[str]:
        """Yield what is done beside the uploads as text for people."""
        yield from (f"{job.job_id}: {job.action}" for job in self.jobs)
        if self.history is not None:
            yield from self.history.lines()


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
        destination: URL of the destination; a sweep of `dataset1` never changes `dataset10`.
        wanted: Sweep only these uploads, and no folders of jobs. Uploads that a job may still need are kept
            anyway.
        dry_run: Report what would be done, and change nothing; the default.
        measure: For uploads with these actions, request the size from the store if its listing has none: one
            request for each upload.
        progress: Receives the progress of long steps; the total of a listing is unknown and given as 0.

    Raises:
        InvalidInputError: The destination or the filter is not valid.
        LockgateError: The store refused a request or gave no answer; the next sweep does the rest.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    progress = progress or no_progress
    store = with_recorded_capabilities(open_store(destination, settings), settings, clock)
    folder = wanted.folder
    with step("sweep"):
        listing = list_job_folders(store)
        state = find(store, SweepState, layout.SWEEP_STATE) or SweepState(seen={})
        ownership = _ownership(store, listing, state, settings, clock)
        ownership.named = wanted.owner == NO_OWNER
        found = ((info, ownership.classify(info)) for info in list_uploads(store, folder, progress))
        listed = [upload for info, upload in found if wanted.admits(info, upload.owner, ownership.now_s)]
        uploads = tuple(ownership.keep_foreign(listed))
        uploads = tuple(measure_uploads(store, uploads, measure, settings=settings, progress=progress))
        if not dry_run:
            orphans = [upload for upload in uploads if upload.action is SweepAction.ABORT]
            _abort(store, orphans, settings, progress)
            for upload in orphans:
                ownership.ownerless.pop(upload.name, None)
            _store_ownerless(store, state, ownership.ownerless, folder)
        jobs: tuple[SweptJob, ...] = ()
        history = None
        if wanted == EVERYTHING:
            swept = sweep_ended_jobs(store, listing, ownership.jobs, settings, clock, dry_run=dry_run)
            jobs = tuple(swept)
            log = DestinationLog(store, settings.near_calls)
            history = sweep_history(log, settings.orphan_age_s, clock.now_s(), dry_run=dry_run)
        return SweepReport(
            destination=store.url,
            dry_run=dry_run,
            uploads=uploads,
            total=upload_totals(uploads, settings),
            by_action=totals_by_action(uploads, settings),
            jobs=jobs,
            history=history,
        )


class FoundUploads(NamedTuple):
    """The first open uploads of a destination, and whether there are no others."""

    uploads: tuple[OpenUpload, ...]
    is_all: bool


def find_uploads(
    destination: str, limit: int, *, limit_s: float = inf, settings: Settings, clock: Clock
) -> FoundUploads:
    """Return the first open uploads of a destination, as a sweep would find them now; change nothing.

    Args:
        destination: URL of the destination.
        limit: Number of uploads after which the listing ends.
        limit_s: Time in seconds after which the listing ends.
        settings: Settings.
        clock: Clock of the ages, and of this time.

    Raises:
        LockgateError: The store refused a request or gave no answer.
    """
    store = with_recorded_capabilities(open_store(destination, settings), settings, clock)
    state = find(store, SweepState, layout.SWEEP_STATE) or SweepState(seen={})
    ownership = _ownership(store, list_job_folders(store), state, settings, clock)
    ends_s = clock.monotonic_s() + limit_s
    found: list[OpenUpload] = []
    is_all = True
    for info in list_uploads(store, "", no_progress):
        if len(found) == limit or clock.monotonic_s() > ends_s:
            is_all = False
            break
        found.append(ownership.classify(info))
    return FoundUploads(tuple(ownership.keep_foreign(found)), is_all)


def _ownership(
    store: Store, listing: JobListing, state: SweepState, settings: Settings, clock: Clock
) -> UploadOwnership:
    """Read the jobs that may own uploads, before the uploads are listed."""
    summaries = {job: summarise(store, job, settings=settings, clock=clock) for job in listing.others}
    is_full = len(state.seen) >= MAX_STAGED
    return UploadOwnership(store, summaries, listing.done, state.seen, settings, clock.now_s(), is_full)


def _abort(store: Store, uploads: Sequence[OpenUpload], settings: Settings, progress: Progress) -> None:
    def abort(upload: OpenUpload) -> None:
        try:
            store.abort_upload(upload.key, upload.upload_id)
        except (StoreUnavailableError, *NOT_ABOUT_THE_FILE):
            raise
        except NotAppliedError as error:  # of this one: the others are aborted all the same
            LOG.warning("an open upload stays: %s", error)

    for done, _ in enumerate(in_parallel(abort, uploads, settings.near_calls, settings.far_calls), start=1):
        progress("abort uploads", done, len(uploads))


def _store_ownerless(store: Store, state: SweepState, ownerless: dict[str, float], folder: str) -> None:
    """Store the ownerless uploads for the next sweep; keep the entries of folders that were not swept."""
    elsewhere = {name: first_s for name, first_s in state.seen.items() if not name.startswith(folder)}
    seen = {**elsewhere, **ownerless}
    if seen or state.seen:
        # Uploads beyond the limit count as new in the next sweep.
        store.put(layout.SWEEP_STATE, encode(SweepState(seen=dict(islice(seen.items(), MAX_STAGED)))))
