"""After a failure of the whole framework: from a prefix back to the jobs that left something below it.

Needs neither a journal nor a list of destinations. An open upload carries its job's short id, and a
`_lockgate/` above it says whose that is. What left no upload is found by a listing of all that lies there.

Source: commit protocol, "Recovery" and "Orphans".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.conflict_mode import Owners
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult, recover_all, settle
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import AccessDeniedError, LockgateError, MalformedRecordError
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
    """Settle every job that left something below a prefix, by recovery's table.

    Of a destination above the prefix only the jobs whose uploads are open below it; of the others all. The
    journal, if there is one, hears of all jobs of these destinations: it may have lost them.

    Args:
        url: `s3://bucket/prefix`, `file:///dir` or a path; need not be a destination.
        dry_run: Say what would be done and change nothing.
        settings: From the environment by default.
        clock: The machine's by default.
        progress: Hears how far the listings are; their end nobody knows.

    Yields:
        A result a job, as it is settled; `detail` says what is not settled yet.

    Raises:
        InvalidInputError: The URL cannot be.
        LockgateError: A listing failed; what was yielded is settled, and another scan goes on. Where it was
            one destination's, the others were scanned first.
    """
    settings = settings or load_settings()
    place = _Place(open_store(url, settings), settings, progress)
    first_error: LockgateError | None = None
    for destination, jobs in place.destinations():
        try:
            if settings.has_journal and not dry_run:
                _register(destination, settings, clock)
            if jobs is None:
                yield from recover_all(destination, dry_run=dry_run, settings=settings, clock=clock)
            else:
                yield from settle(jobs, dry_run=dry_run, settings=settings, clock=clock)
        except LockgateError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _register(destination: str, settings: Settings, clock: Clock | None) -> None:
    from lockgate.storage_core.commit.recovery.registry_rebuild import rescan  # noqa: PLC0415 - SQLAlchemy: half a second

    for _ in rescan(destination, settings=settings, clock=clock):
        pass


@dataclass
class _Place:
    """What lies above and below one URL."""

    store: Store
    settings: Settings
    progress: Progress
    _owners: dict[str, Owners] = field(default_factory=dict)

    def destinations(self) -> Iterator[tuple[str, list[JobAt] | None]]:
        """Yield each destination above and below, with the jobs that are meant, None for all of them."""
        for parent in _parents(self.store.url):
            with suppress(AccessDeniedError):  # what we may not list there, we may not settle either
                jobs = self._above(open_store(parent, self.settings))
                if jobs:
                    yield parent, jobs
        for destination in self._below():
            yield destination, None

    def _above(self, store: Store) -> list[JobAt]:
        """Return the jobs of a destination above that have an upload open here."""
        if not any(store.pages(layout.ROOT, page_size=1)):
            return []
        owners, jobs = Owners(store), dict[JobAt, None]()
        for page in store.upload_pages(f"{self.store.url.removeprefix(f'{store.url}/')}/"):
            for info in page:
                with suppress(MalformedRecordError):
                    owner = owners.owner(info.key)
                    if owner is not None:
                        jobs[JobAt(store.url, owner)] = None
        return list(jobs)

    def _below(self) -> Iterator[str]:
        """Yield each destination here and below, once: those of open uploads, then all others."""
        known = set[str]()
        for folders in (self._of_uploads(), self._of_objects()):
            for folder in folders:
                if folder not in known:
                    known.add(folder)
                    yield f"{self.store.url}/{folder}".rstrip("/")

    def _of_uploads(self) -> Iterator[str]:
        found = 0
        for page in self.store.upload_pages():
            for info in page:
                yield from self._claimed_in(info.key)
            found += len(page)
            self.progress("list uploads", found, 0)

    def _of_objects(self) -> Iterator[str]:
        found, after = 0, ""
        while page := next(iter(self.store.pages(after=after)), ()):
            after = page[-1].key
            found += len(page)
            for info in page:
                folder, is_ours, _ = f"/{info.key}".partition(_INSIDE)
                if is_ours:
                    inside = f"{folder}{_INSIDE}".removeprefix("/")
                    yield folder.removeprefix("/")
                    # "0" follows "/": no record in there says more.
                    after = max(after, f"{inside.removesuffix('/')}0")
            self.progress("list objects", found, 0)

    def _claimed_in(self, key: str) -> Iterator[str]:
        """Yield the outermost folder here in whose `_lockgate/` an upload's short id is claimed."""
        for folder in ("", *folders_of(key)):
            if folder not in self._owners:
                url = f"{self.store.url}/{folder}".rstrip("/")
                self._owners[folder] = Owners(open_store(url, self.settings))
            try:
                is_claimed = self._owners[folder].owner(key) is not None
            except MalformedRecordError:
                is_claimed = True  # by whom, its jobs' own records tell
            if is_claimed:
                yield folder
                return


def _parents(url: str) -> Iterator[str]:
    """Yield what lies above a URL, innermost first: `s3://b/x/y` → `s3://b/x`, `s3://b`."""
    scheme, _, path = url.partition("://")
    while "/" in path.strip("/"):
        path = path.rpartition("/")[0]
        yield f"{scheme}://{path}"
