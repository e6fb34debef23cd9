"""Whose an open upload is, and whether anyone may abort it: by owner, never by age alone.

Source: commit protocol, "Orphans", and architecture, rule 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.destination.conflict_mode import Owners
from lockgate.storage_core.commit.destination.nested import DestinationsBelow
from lockgate.storage_core.commit.job_summary import JobSummary
from lockgate.storage_core.commit.leases.protocol import LeaseState
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, UploadInfo, open_store
from lockgate.storage_core.stores.protocol import check_key

NOBODY: Final = "none"
"""Stands for the owner of what no job owns; no job id looks like it."""


class SweepAction(StrEnum):
    """What a sweep does with an upload."""

    KEEP = "keep"
    STAGE = "stage"
    """Ownerless, seen now: a later sweep aborts it if it is still there."""
    ABORT = "abort"


class UploadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which open uploads are meant; all by default. It narrows what is aborted, and never widens it.

    Attributes:
        prefix: A folder below the destination, its last `/` may be left out: `day=1` never means `day=10`.
        older_than_s: Only what was begun at least so long ago.
        owner: Only this job's; `none`: only what no job owns.
    """

    prefix: str = ""
    older_than_s: float = 0.0
    owner: JobId | Literal["none"] | None = None

    @property
    def folder(self) -> str:
        """The prefix of the keys that are meant: empty, or ending in `/`.

        Raises:
            InvalidInputError: It leaves the destination.
        """
        name = self.prefix.rstrip("/")
        return f"{check_key(name)}/" if name else ""

    def admits(self, info: UploadInfo, owner: JobId | None, now_s: float) -> bool:
        """Tell whether an upload below the folder is meant."""
        # Without an age none is looked at: the store's clock may be ahead of ours.
        if self.older_than_s and now_s - info.begun_s < self.older_than_s:
            return False
        return self.owner is None or self.owner == (owner or NOBODY)


EVERYTHING: Final = UploadFilter()


class UploadFate(msgspec.Struct, frozen=True, kw_only=True):
    """One open upload, whose it is, and what the sweep does with it.

    Attributes:
        begun_s: Seconds since the epoch, by the store's clock.
        size: Bytes; None where nobody has asked the store.
        reason: Why this action.
        remedy: What an operator can do about one that is kept; empty where there is nothing to do.
    """

    key: str
    upload_id: str
    owner: JobId | None
    begun_s: float
    size: int | None
    action: SweepAction
    reason: str
    remedy: str = ""

    @property
    def name(self) -> str:
        """By what a later sweep knows it again."""
        return f"{self.key}\n{self.upload_id}"


def count_uploads(
    destination: str,
    wanted: UploadFilter = EVERYTHING,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> int:
    """Return how many uploads are open at a destination, whoever's they are.

    Raises:
        InvalidInputError: The destination or the filter cannot be.
        LockgateError: The store said no.
    """
    store = open_store(destination, settings or load_settings())
    owners, now_s = Owners(store), (clock or SystemClock()).now_s()
    return sum(
        wanted.admits(info, owners.owner(info.key) if wanted.owner else None, now_s)
        for info in listed(store, wanted.folder, progress or no_progress)
    )


def listed(store: Store, folder: str, progress: Progress) -> Iterator[UploadInfo]:
    """Yield the open uploads below a folder; tells the progress of a listing whose end nobody knows."""
    found = 0
    for page in store.upload_pages(folder):
        yield from page
        found += len(page)
        progress("list uploads", found, 0)


@dataclass
class Judge:
    """Says of each upload of a destination whose it is and what becomes of it.

    Attributes:
        jobs: Of the destination those that are not done, as they stood before its uploads were listed.
        done: The others, with how they ended.
        seen: When an earlier sweep first saw an upload without an owner, by `UploadFate.name`.
        ownerless: The same of this sweep.
    """

    store: Store
    jobs: dict[JobId, JobSummary]
    done: dict[JobId, JobPhase]
    seen: dict[str, float]
    settings: Settings
    now_s: float
    ownerless: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owners = Owners(self.store)
        self._writer = next((job.job_id for job in self.jobs.values() if _may_write(job)), None)
        self._below = DestinationsBelow(self.store)

    def judge(self, info: UploadInfo) -> UploadFate:
        """Return the upload's fate."""
        owner = self._owners.owner(info.key)
        nested = self._below.holding(info.key)
        if nested is not None:
            action = SweepAction.KEEP
            reason = "it lies in another destination, which has its own sweep"
            remedy = f"`lockgate uploads abort {self.store.url}/{nested}`"
        elif owner is not None and owner in self.done:
            action, reason, remedy = _of_ended(self.done[owner])
        elif owner is None or owner not in self.jobs or self.jobs[owner].is_remnant:
            action, reason, remedy = self._ownerless(info)
        else:
            action, reason, remedy = self._owned(self.jobs[owner])
        return UploadFate(
            key=info.key,
            upload_id=info.upload_id,
            owner=owner,
            begun_s=info.begun_s,
            size=info.size,
            action=action,
            reason=reason,
            remedy=remedy,
        )

    def _owned(self, job: JobSummary) -> tuple[SweepAction, str, str]:
        if job.phase in TERMINAL:
            return _of_ended(job.phase)
        its = f"{self.store.url} {job.job_id}"
        recover = f"`lockgate jobs recover {its}`"
        if job.phase is None:
            return SweepAction.KEEP, "its job's records cannot be read", f"`lockgate jobs show {its}`"
        if job.phase is not JobPhase.OPEN:
            return (
                SweepAction.KEEP,
                f"its job is decided ({job.phase}): recovery brings it to its end",
                recover,
            )
        if job.lease is LeaseState.LAPSED:
            return SweepAction.KEEP, "its job lapsed: recovery must decide first", recover
        if job.lease is LeaseState.UNKNOWN:
            return SweepAction.KEEP, "its job is undecided and its lease cannot be read", recover
        abort = f"wait for the job, or give it up: `lockgate jobs abort {its}`"
        return SweepAction.KEEP, f"its job is at work: {job.lease}", abort

    def _ownerless(self, info: UploadInfo) -> tuple[SweepAction, str, str]:
        name = f"{info.key}\n{info.upload_id}"
        first_s = self.ownerless[name] = self.seen.get(name, self.now_s)
        if self.now_s - first_s < self.settings.orphan_age_s:
            hours = self.settings.orphan_age_s / 3600
            remedy = f"sweep again, {hours:g} hours after the first sweep that saw it"
            return SweepAction.STAGE, "no owner: a later sweep takes it", remedy
        if self._writer is not None:
            reason = f"no owner, but job {self._writer} may be writing it"
            return (
                SweepAction.KEEP,
                reason,
                f"`lockgate jobs recover {self.store.url} --all`, then sweep again",
            )
        return SweepAction.ABORT, "no owner, seen by two sweeps", ""


def _of_ended(phase: JobPhase) -> tuple[SweepAction, str, str]:
    return SweepAction.ABORT, f"its job has ended: {phase}", ""


def _may_write(job: JobSummary) -> bool:
    """Tell whether an upload without an owner may be this job's.

    Not where its file names are unique: they carry its short id, which is claimed before the first upload.
    """
    if job.is_remnant or job.phase in TERMINAL:
        return False
    return job.record is None or not job.record.spec.unique_filenames
