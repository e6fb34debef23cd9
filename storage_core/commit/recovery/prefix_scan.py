"""Recover all jobs below a prefix, without a journal or a list of destinations.

The key of an open upload contains its job's short id, and a `_lockgate/` folder above it names the job. Jobs
without an open upload are found by listing all objects below the prefix.

Source: commit protocol, "Recovery" and "Orphans".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.visible_files import Owners
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, recover_all, recover_jobs
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import (
    AccessDeniedError,
    DestinationNotFoundError,
    LockgateError,
    MalformedRecordError,
)
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.file_tree import folders_of

_INSIDE: Final = f"/{layout.ROOT}"


def scan(
    url: str,
    *,
    dry_run: bool = False,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress = no_progress,
) -> Iterator[RecoveryResult]:
    """Recover the jobs of all destinations below a prefix.

    Of a destination above the prefix, only the jobs with open uploads below the prefix are recovered. The
    journal, if there is one, gets all jobs of these destinations, because it may have lost them.

    Args:
        url: `s3://bucket/prefix`, `file:///dir` or a path; it need not be a destination.
        dry_run: Yield what would be done, and change nothing.
        progress: Receives the progress of the listings, without a total.

    Yields:
        The result of each job when it is done; `detail` has the message if it could not be recovered.

    Raises:
        InvalidInputError: The URL is not valid.
        DestinationNotFoundError: No destination was found, such as after a typo.
        LockgateError: A listing failed; yielded jobs are recovered; scan again. If it was the listing of one
            destination, the others were scanned first.
    """
    settings = settings or load_settings()
    prefix = _Prefix(open_store(url, settings), settings, progress)
    first_error: LockgateError | None = None
    for destination, jobs in prefix.destinations():
        try:
            if settings.has_journal and not dry_run:
                _register(destination, settings, clock)
            if jobs is None:
                yield from recover_all(destination, dry_run=dry_run, settings=settings, clock=clock)
            else:
                yield from recover_jobs(jobs, dry_run=dry_run, settings=settings, clock=clock)
        except LockgateError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    if not prefix.is_used:
        raise DestinationNotFoundError(
            f"there is no destination at, above or below {prefix.store.url}: no job was ever set up there, "
            "and no upload of a job is open; nothing was done; check the spelling"
        )


def _register(destination: str, settings: Settings, clock: Clock | None) -> None:
    from lockgate.storage_core.commit.recovery.registry_rebuild import rescan  # noqa: PLC0415 - SQLAlchemy: half a second

    for _ in rescan(destination, settings=settings, clock=clock):
        pass


@dataclass
class _Prefix:
    """Finds the destinations above and below a URL.

    Attributes:
        is_used: Whether one was found so far.
    """

    store: Store
    settings: Settings
    progress: Progress
    is_used: bool = False
    _owners: dict[str, Owners] = field(default_factory=dict)

    def destinations(self) -> Iterator[tuple[str, list[JobAt] | None]]:
        """Yield each destination with the jobs to recover; None means all its jobs."""
        for parent in _parents(self.store.url):
            with suppress(AccessDeniedError):  # without access to list, there is no access to recover
                jobs = self._jobs_of_parent(open_store(parent, self.settings))
                if jobs:
                    yield parent, jobs
        for destination in self._destinations_below():
            yield destination, None

    def _jobs_of_parent(self, store: Store) -> list[JobAt]:
        """Return the jobs of a destination above the prefix that have open uploads below it."""
        if not any(store.pages(layout.ROOT, page_size=1)):
            return []
        self.is_used = True
        owners, jobs = Owners(store), dict[JobAt, None]()
        for page in store.upload_pages(f"{self.store.url.removeprefix(f'{store.url}/')}/"):
            for info in page:
                with suppress(MalformedRecordError):
                    owner = owners.owner(info.key)
                    if owner is not None:
                        jobs[JobAt(store.url, owner)] = None
        return list(jobs)

    def _destinations_below(self) -> Iterator[str]:
        """Yield each destination at and below the prefix: first those of open uploads, then the others."""
        known = set[str]()
        for folder in chain(self._folders_of_uploads(), self._folders_of_objects()):
            if folder not in known:
                known.add(folder)
                self.is_used = True
                yield f"{self.store.url}/{folder}".rstrip("/")

    def _folders_of_uploads(self) -> Iterator[str]:
        found = 0
        for page in self.store.upload_pages():
            for info in page:
                yield from self._claiming_folder(info.key)
            found += len(page)
            self.progress("list uploads", found, 0)

    def _folders_of_objects(self) -> Iterator[str]:
        found, after = 0, ""
        while page := next(iter(self.store.pages(after=after)), ()):
            after = page[-1].key
            found += len(page)
            for info in page:
                folder, is_record, _ = f"/{info.key}".partition(_INSIDE)
                if is_record:
                    inside = f"{folder}{_INSIDE}".removeprefix("/")
                    yield folder.removeprefix("/")
                    # Skip the other records in this folder: "0" follows "/".
                    after = max(after, f"{inside.removesuffix('/')}0")
            self.progress("list objects", found, 0)

    def _claiming_folder(self, key: str) -> Iterator[str]:
        """Yield the outermost folder whose `_lockgate/` has the short id of an upload, if there is one."""
        for folder in ("", *folders_of(key)):
            if folder not in self._owners:
                url = f"{self.store.url}/{folder}".rstrip("/")
                self._owners[folder] = Owners(open_store(url, self.settings))
            try:
                is_claimed = self._owners[folder].owner(key) is not None
            except MalformedRecordError:
                is_claimed = True  # recovery of the destination reports the unreadable record
            if is_claimed:
                yield folder
                return


def _parents(url: str) -> Iterator[str]:
    """Yield the parents of a URL, innermost first: `s3://b/x/y` → `s3://b/x`, `s3://b`."""
    scheme, _, path = url.partition("://")
    while "/" in path.strip("/"):
        path = path.rpartition("/")[0]
        yield f"{scheme}://{path}"
