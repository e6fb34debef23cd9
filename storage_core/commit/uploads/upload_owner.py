"""Find the owner of an open upload, and decide by the owner, never by age alone, whether to abort it.

Source: commit protocol, "Orphans", and architecture, rule 4; S3A committers, "The Magic Committer".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final, Literal

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.destination.visible_files import NestedDestinations, Owners
from lockgate.storage_core.commit.job_summary import JobSummary
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, UploadInfo, open_store
from lockgate.storage_core.stores.protocol import check_key, check_listed_key

MAGIC: Final = ("__magic_job-", "__magic/")


@dataclass
class S3aJobs:
    """Finds magic folders in a destination; each folder is listed once, for one key."""

    store: Store
    _found: dict[str, str | None] = field(default_factory=dict)

    def above(self, key: str) -> str | None:
        """Return the magic folder of a job whose destination contains this key, None if there is none.

        Raises:
            LockgateError: The store refused the listing or gave no answer.
        """
        folders = key.split("/")[:-1]
        for folder in accumulate(folders, lambda above, name: f"{above}{name}/", initial=""):
            found = self.inside(folder)
            if found is not None:
                return found
        return None

    def inside(self, folder: str = "") -> str | None:
        """Return the magic folder directly inside a folder; the folder is empty or ends in `/`."""
        if folder not in self._found:
            self._found[folder] = self._list(folder)
        return self._found[folder]

    def _list(self, folder: str) -> str | None:
        for kind in MAGIC:
            for page in self.store.pages(f"{folder}{kind}", page_size=1):
                for info in page:
                    name, in_folder, _ = info.key.removeprefix(folder).partition("/")
                    return f"{folder}{name}/" if in_folder else None
        return None


NO_OWNER: Final = "none"
"""Owner of uploads that no job owns; it is not a valid job id."""


class SweepAction(StrEnum):
    """Action of a sweep on an upload."""

    KEEP = "keep"
    STAGE = "stage"
    """The upload has no owner; a later sweep aborts it if it is still open."""
    ABORT = "abort"


class UploadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of open uploads; all by default. It can only reduce the set of aborted uploads.

    Attributes:
        prefix: Folder below the destination, with or without a trailing `/`: `day=1` does not match `day=10`.
        older_than_s: Minimum age in seconds.
        owner: Job that owns the uploads; `none` for uploads without an owner.
    """

    prefix: str = ""
    older_than_s: float = 0.0
    owner: JobId | Literal["none"] | None = None

    @property
    def folder(self) -> str:
        """Prefix of the keys: empty, or ending in `/`.

        Raises:
            InvalidInputError: The prefix leaves the destination.
        """
        name = self.prefix.rstrip("/")
        return f"{check_key(name)}/" if name else ""

    def admits(self, info: UploadInfo, owner: JobId | None, now_s: float) -> bool:
        """Return whether an upload below the folder matches."""
        # Without a minimum age, ignore the age: the store's clock may be ahead of ours.
        if self.older_than_s and now_s - info.begun_s < self.older_than_s:
            return False
        return self.owner is None or self.owner == (owner or NO_OWNER)


EVERYTHING: Final = UploadFilter()


class OpenUpload(msgspec.Struct, frozen=True, kw_only=True):
    """One open upload, its owner, and the action of the sweep.

    Attributes:
        begun_s: Begin of the upload in seconds since the epoch, by the store's clock.
        size: Size in bytes; None if it was not requested.
        reason: Reason for the action.
        remedy: What an operator can do about an upload that is kept; empty if nothing.
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
        """Name of the upload in the state of a sweep."""
        return f"{self.key}\n{self.upload_id}"


def count_uploads(
    destination: str,
    wanted: UploadFilter = EVERYTHING,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> int:
    """Return the number of open uploads at a destination.

    Raises:
        InvalidInputError: The destination or the filter is invalid.
        LockgateError: The store refused or failed.
    """
    store = open_store(destination, settings or load_settings())
    owners, now_s = Owners(store), (clock or SystemClock()).now_s()
    return sum(
        wanted.admits(info, owners.owner(info.key) if wanted.owner else None, now_s)
        for info in list_uploads(store, wanted.folder, progress or no_progress)
    )


def list_uploads(store: Store, folder: str, progress: Progress) -> Iterator[UploadInfo]:
    """Yield the open uploads below a folder; report progress without a total."""
    found = 0
    for page in store.upload_pages(folder):
        yield from page
        found += len(page)
        progress("list uploads", found, 0)


@dataclass
class UploadOwnership:
    """Finds the owner of each upload of a destination, and decides the action of a sweep.

    Attributes:
        jobs: Jobs of the destination that are not done, read before its uploads were listed.
        done: The other jobs, with their terminal phase.
        seen: Times at which earlier sweeps first saw uploads without an owner, by `OpenUpload.name`.
        is_full: Whether earlier sweeps saw more uploads than they could store: others may be old as well.
        named: Whether the filter names uploads without an owner, so that those of another tool may go.
        ownerless: The same as `seen`, for the uploads that this sweep has seen.
    """

    store: Store
    jobs: dict[JobId, JobSummary]
    done: dict[JobId, JobPhase]
    seen: dict[str, float]
    settings: Settings
    now_s: float
    is_full: bool = False
    named: bool = False
    ownerless: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._s3a_jobs = S3aJobs(self.store)
        self._owners = Owners(self.store)
        self._writer = next((job.job_id for job in self.jobs.values() if _may_write(job)), None)
        self._nested = NestedDestinations(self.store)

    def classify(self, info: UploadInfo) -> OpenUpload:
        """Return the owner of an upload and the action of the sweep."""
        owner = self._owners.owner(info.key)
        nested = self._nested.containing(info.key)
        if nested is not None:
            action = SweepAction.KEEP
            reason = "it is in another destination, which has a separate sweep"
            remedy = f"`lockgate uploads abort {self.store.url}/{nested}`"
        elif owner is not None and owner in self.done:
            action, reason, remedy = _of_ended(self.done[owner])
        elif owner is None or owner not in self.jobs or self.jobs[owner].is_partly_deleted:
            action, reason, remedy = self._ownerless(info)
        else:
            action, reason, remedy = self._owned(self.jobs[owner])
        return OpenUpload(
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
        address = f"{self.store.url} {job.job_id}"
        recover = f"`lockgate jobs recover {address}`"
        if job.phase is None:
            return SweepAction.KEEP, "its job's records cannot be read", f"`lockgate jobs show {address}`"
        if job.phase is not JobPhase.OPEN:
            return SweepAction.KEEP, *_of_decided(job.phase, address)
        if job.lease in {JobLeaseState.OVERDUE, JobLeaseState.LAPSED}:
            return SweepAction.KEEP, "its job lapsed: recovery must decide first", recover
        if job.lease is JobLeaseState.UNKNOWN:
            return SweepAction.KEEP, "its job is undecided and its lease cannot be read", recover
        remedy = f"wait for the job, or abort it: `lockgate jobs abort {address}`"
        return SweepAction.KEEP, f"its job is active: {job.lease}", remedy

    def keep_foreign(self, uploads: Iterable[OpenUpload]) -> Iterator[OpenUpload]:
        """Keep uploads without an owner, because another tool may be at work, for as long as new ones appear.

        Call it after all uploads were classified.
        """
        first_s = (first for name, first in self.ownerless.items() if name in self.seen or not self.is_full)
        newest_s = max(first_s, default=0.0)
        is_at_work = not self.named and self.now_s - newest_s < self.settings.orphan_age_s
        for upload in uploads:
            if is_at_work and upload.action is SweepAction.ABORT and upload.name in self.ownerless:
                reason = "no owner, but another tool may be at work: newer uploads without an owner are open"
                yield msgspec.structs.replace(
                    upload, action=SweepAction.KEEP, reason=reason, remedy=self._by_name
                )
            else:
                yield upload

    @property
    def _by_name(self) -> str:
        return f"if no other tool writes here: `lockgate uploads abort {self.store.url} --owner none --yes`"

    def _ownerless(self, info: UploadInfo) -> tuple[SweepAction, str, str]:
        name = f"{info.key}\n{info.upload_id}"
        first_s = self.ownerless[name] = self.seen.get(name, self.now_s)
        if self.now_s - first_s < self.settings.orphan_age_s:
            hours = self.settings.orphan_age_s / 3600
            remedy = f"sweep again, {hours:g} hours after the first sweep that saw it"
            return SweepAction.STAGE, "no owner: a later sweep aborts it", remedy
        if self._writer is not None:
            reason = f"no owner, but job {self._writer} may be writing it"
            remedy = f"`lockgate jobs recover {self.store.url} --all`, then sweep again"
            return SweepAction.KEEP, reason, remedy
        magic = None if self.named else self._s3a_jobs.above(info.key)
        if magic is not None:
            return (
                SweepAction.KEEP,
                f"no owner, but {magic} is of an S3A job that may be writing it",
                self._by_name,
            )
        try:
            check_listed_key(info.key)
        except InvalidInputError:
            remedy = "abort it with the tool that began it, or by a lifecycle rule of the bucket"
            return SweepAction.KEEP, "no owner, and its key could be taken for another", remedy
        return SweepAction.ABORT, "no owner, seen by two sweeps", ""


def _of_decided(phase: JobPhase, address: str) -> tuple[str, str]:
    if phase is JobPhase.QUARANTINED:
        return "its job is in quarantine", f"`lockgate jobs abort {address}`"
    return f"its job is decided ({phase}): recovery finishes it", f"`lockgate jobs recover {address}`"


def _of_ended(phase: JobPhase) -> tuple[SweepAction, str, str]:
    return SweepAction.ABORT, f"its job has ended: {phase}", ""


def _may_write(job: JobSummary) -> bool:
    """Return whether this job may have written an upload without an owner."""
    # Unique file names have the job's short id, which is claimed before the first upload.
    if job.is_partly_deleted or job.phase in TERMINAL:
        return False
    return job.record is None or not job.record.spec.unique_filenames
