"""Data files that a listing of a destination shows, without those of nested destinations, and their owners.

A folder is a destination if its `_lockgate/` has any object. Nearly all nested destinations are found in the
listing itself; one extra request is made for each folder whose `_lockgate/` has not been listed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.generations import recorded_end
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import ShortIdClaim
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.ids import JobId, ShortId, short_id_in
from lockgate.storage_core.stores import ObjectInfo, Store
from lockgate.storage_core.stores.file_tree import folders_of
from lockgate.storage_core.stores.protocol import PAGE

FIRST_PAGE: Final = 100


@dataclass
class NestedDestinations:
    """Lists a destination and finds the folders in it that are destinations themselves."""

    store: Store
    _known: dict[str, bool] = field(default_factory=dict)
    _prefix: str = ""
    _last: str | None = None

    def pages(self, prefix: str = "", after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """List as `Store.pages` does, and record the nested destinations of each page before yielding it.

        The rest of a `_lockgate/` that a page ends in is skipped: it has some nine objects for each turn. The
        first page is short, because it is mostly one of these.
        """
        self._last = None
        rest: str | None = after
        while rest is not None:
            size = PAGE if rest or prefix else FIRST_PAGE
            listed, rest = self.store.pages(prefix, after=rest, page_size=size), None
            for page in listed:
                self._learn(prefix, page)
                yield page
                folder, is_record, _ = f"/{page[-1].key if page else ''}".partition(f"/{layout.ROOT}")
                if is_record:  # "0" follows "/"
                    rest = f"{folder}/{layout.ROOT.removesuffix('/')}0".removeprefix("/")
                elif len(page) == size == FIRST_PAGE:
                    rest = page[-1].key
                if rest is not None:
                    break

    def containing(self, key: str) -> str | None:
        """Return the outermost nested destination that contains this key, or None."""
        return next(filter(self._is_destination, folders_of(key)), None)

    def _learn(self, prefix: str, page: Sequence[ObjectInfo]) -> None:
        for info in page:
            folder, is_destination, _ = info.key.partition(f"/{layout.ROOT}")
            if is_destination:
                self._known[folder] = True
        if page:
            self._prefix, self._last = prefix, page[-1].key

    def _is_destination(self, folder: str) -> bool:
        if folder in self._known:
            return self._known[folder]
        if self._was_listed(folder):
            return False
        first = next(iter(self.store.pages(f"{folder}/{layout.ROOT}", page_size=1)), ())
        self._known[folder] = len(first) > 0
        return self._known[folder]

    def _was_listed(self, folder: str) -> bool:
        """Return whether the listing has passed the position of a folder's `_lockgate/`."""
        inside = f"{folder}/{layout.ROOT}"
        return self._last is not None and inside.startswith(self._prefix) and inside <= self._last


@dataclass
class Owners:
    """Find the job that wrote a file, by the short id in its key; results are cached."""

    store: Store
    _jobs: dict[ShortId, JobId | None] = field(default_factory=dict)
    _phases: dict[JobId, JobPhase | None] = field(default_factory=dict)

    def owner(self, key: str) -> JobId | None:
        """Return the job whose short id is in the key; None if there is no known short id."""
        short = short_id_in(key)
        if short is None:
            return None
        if short not in self._jobs:
            self._jobs[short] = owner_of(self.store, short)
        return self._jobs[short]

    def phase(self, job: JobId) -> JobPhase | None:
        """Return a job's phase as of the first call; None if its records cannot be read."""
        if job not in self._phases:
            try:
                phase = JobFolder(self.store, job).phase()
                end = recorded_end(self.store, job) if phase is JobPhase.OPEN else None
                self._phases[job] = phase if end is None else end.phase  # its folder may be deleted
            except MalformedRecordError:
                self._phases[job] = None
        return self._phases[job]

    def is_unpublished(self, key: str) -> bool:
        """Return whether a key belongs to a job that manifest readers do not see."""
        owner = self.owner(key)
        return owner is not None and self.phase(owner) not in {JobPhase.PUBLISHED, JobPhase.COMMITTED, None}


def owner_of(store: Store, short: ShortId) -> JobId | None:
    """Return the job that claimed a short id at this destination, or None."""
    claimed = find(store, ShortIdClaim, layout.short_id_claim(short))
    return None if claimed is None else claimed.job_id


def _is_folder_marker(info: ObjectInfo) -> bool:
    """Return whether an object only shows a folder in a browser: `day=1/`, without content."""
    return info.key.endswith("/") and info.size == 0


def visible_files(
    store: Store,
    prefixes: Sequence[str] = ("",),
    is_ours: Callable[[str], bool] = lambda _: False,
    *,
    after: str = "",
) -> Iterator[ObjectInfo]:
    """Yield the data files that a listing reader sees, except those of nested destinations.

    A key may be one that `check_key` refuses, if another program wrote the file.

    Args:
        store: Store of the destination.
        prefixes: Folders to list; by default the whole destination.
        is_ours: Return whether a key in a nested destination belongs to this destination nevertheless.
        after: Key after which to begin.
    """
    nested = NestedDestinations(store)
    for prefix in prefixes:
        for page in nested.pages(prefix, after):
            for info in page:
                if layout.is_hidden(info.key) or _is_folder_marker(info):
                    continue
                if nested.containing(info.key) is None or is_ours(info.key):
                    yield info
