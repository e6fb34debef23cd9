"""Find destinations above and below a destination, by their logs, and refuse to begin between them.

If two destinations overlap, a file can lie in both: a `replace` of one may delete what the other has
published, whose log still names it. A folder counts as a destination here if its log has a publication or an
open turn, whatever its name is; a set-up that never published does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Final

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.concurrency import Together, in_order
from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    InvalidInputError,
    MalformedLogError,
    MalformedRecordError,
    ObjectNotFoundError,
)
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.open_store import canonical_url
from lockgate.storage_core.stores.probe import Finding

LOG: Final = logging.getLogger("lockgate.setup")
_FOUND: Final = "no other destination lies above or below it"


def refuse_overlap(store: Store, settings: Settings, *, is_new: bool = False) -> None:
    """Refuse to begin a destination above or below another one.

    A destination that has published is not checked: a new one above or below it is refused at its own set-up.
    Otherwise the destination is listed whole.

    Args:
        store: Store of the destination.
        settings: Settings.
        is_new: Whether it is known that it has not published.

    Raises:
        ConflictError: There is another destination; the message names it; nothing was changed.
    """
    if not is_new and DestinationLog(store).has_published():
        return
    with Together(settings.near_calls) as together:
        first_below = together.start(lambda: next(destinations_below(store, settings), None))
        for above in destinations_above(store, settings):
            raise _below(store, above)
        below = first_below.result()
        if below is not None:
            raise _above(store, below)


def destinations_above(store: Store, settings: Settings) -> Iterator[Store]:
    """Yield the destinations above this one, innermost first, as far as this process may read them."""
    folders: dict[str, Store] = {}
    for url in dict.fromkeys((store.url, canonical_url(store))):
        for folder in _folders_above(url):
            above = open_store(folder, settings)
            folders.setdefault(canonical_url(above), above)
    in_use = in_order(_is_in_use, folders.values(), settings.near_calls)
    yield from compress(folders.values(), in_use)


def destinations_below(store: Store, settings: Settings) -> Iterator[Store]:
    """Yield the destinations below this one; lists all objects."""
    seen = set()
    for page in store.pages():
        for info in page:
            folder, is_log, _ = info.key.partition(f"/{layout.LOG}")
            if is_log and folder not in seen:
                seen.add(folder)
                with suppress(InvalidInputError):  # a name that no destination can have
                    below = open_store(f"{store.url}/{folder}", settings)
                    if _is_in_use(below):
                        yield below


@dataclass
class FilesAbove:
    """Files below a destination that are live in the log of a destination above it; read when first asked."""

    store: Store
    settings: Settings

    def refuse(self, key: str) -> None:
        """Refuse to remove a file that a destination above names.

        Raises:
            ConflictError: There is such a destination; nothing was published.
        """
        above = self._owners.get(key)
        if above is not None:
            raise ConflictError(
                f"{self.store.url}/{key} is live in the log of {above}, a destination above this one; "
                "replacing it would leave that log with a missing file; nothing was published; remove it by "
                f"a job at {above}, or write to {above} only (`lockgate store check {self.store.url}`)"
            )

    @cached_property
    def _owners(self) -> dict[str, str]:
        return {
            key: above.url
            for above in destinations_above(self.store, self.settings)
            for key in _live_below(above, self.store)
        }


def overlap_findings(store: Store, settings: Settings) -> list[Finding]:
    """Return a finding for each destination above or below this one, or one that there is none."""
    found = []
    for outer, inner in [
        *((above, store) for above in destinations_above(store, settings)),
        *((store, below) for below in destinations_below(store, settings)),
    ]:
        where = f"{inner.url} is below {outer.url}, and both have logs"
        try:
            live = _live_below(outer, inner)
        except MalformedLogError as error:
            detail = f"{where}; {error}"
        else:
            detail = f"{where}; the outer log names {len(live)} live files in the inner one"
            detail += f", the first is {min(live)}: a `replace` there is refused" if live else ""
        found.append(Finding(name=_FOUND, ok=False, detail=f"{detail}; move one of them"))
    return found or [Finding(name=_FOUND, ok=True)]


def _below(store: Store, above: Store) -> ConflictError:
    return ConflictError(
        f"{store.url} is below {above.url}, which is a destination with a log; a `replace` of one would "
        f"delete files of the other; nothing was changed; write to {above.url} and put the folder into "
        "the files' paths, or choose a destination beside it"
    )


def _above(store: Store, below: Store) -> ConflictError:
    return ConflictError(
        f"{store.url} is above {below.url}, which is a destination with a log; a file that this job "
        "wrote there could be deleted by a `replace` of the other; nothing was changed; choose a "
        "destination beside it"
    )


def _is_in_use(other: Store) -> bool:
    """Return whether another destination has published, or has an open turn and may publish."""
    log = DestinationLog(other)
    try:
        if not any(other.pages(layout.LOG, page_size=1)):
            return False  # as most folders
        highest = log.highest()
        if highest is None:
            return False
        return log.has_published() or (
            highest.outcome is None and not _is_aborted(other, highest.claim.job_id)
        )
    except MalformedRecordError:
        return True
    except (AccessDeniedError, ObjectNotFoundError) as error:
        LOG.debug("%s: not checked for a log: %s", other.url, error)
        return False


def _is_aborted(store: Store, job: JobId) -> bool:
    folder = JobFolder(store, job)
    decision = folder.decision()
    if decision is None:
        folder.job()  # without it, the turn is of a destination that was moved away: not in use
    return decision is not None and decision.verdict == "abort"


def _live_below(outer: Store, inner: Store) -> set[str]:
    """Return the keys of the inner destination that are live in the log of the outer one."""
    prefix = canonical_url(inner).removeprefix(canonical_url(outer)).strip("/") + "/"
    files = DestinationLog(outer).manifest().files
    return {key.removeprefix(prefix) for key in files if key.startswith(prefix)}


def _folders_above(url: str) -> Iterator[str]:
    scheme, _, path = url.partition("://")
    while path.rstrip("/"):
        path, slash, _ = path.rpartition("/")
        if scheme == "s3" and not slash:
            return
        yield f"{scheme}://{path or '/'}"
