"""List the destination continuously, to see which files are visible before the decision."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.stores import Store

EVERY_S: Final = 0.1


@dataclass
class Seen:
    """Result of the listings.

    Attributes:
        before: Number of listings before the decision.
        after_audit: Number of these that found the audit's verdict.
        uploads: Maximum number of open uploads before the decision.
        too_early: Files that were visible before the decision; must stay empty.
    """

    before: int = 0
    after_audit: int = 0
    uploads: int = 0
    too_early: tuple[str, ...] = ()


class Watch:
    """Lists a destination in a thread during the block."""

    def __init__(self, store: Store) -> None:
        self.seen = Seen()
        self._store = store
        self._known = frozenset(self._keys())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="demo-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self._list()
            except LockgateError:
                continue  # the next listing may succeed

    def _list(self) -> None:
        new = self._keys() - self._known
        visible = sorted(key for key in new if not layout.is_hidden(key))
        # The marker may have been written between two pages of that listing: list the jobs again.
        decided = _decided(new) or _decided(self._keys(layout.JOBS) - self._known)
        if decided:
            return
        self.seen.before += 1
        self.seen.after_audit += any("/audits/" in key for key in new)
        self.seen.uploads = max(self.seen.uploads, sum(len(page) for page in self._store.upload_pages()))
        if visible:
            self.seen.too_early = tuple(visible)

    def _keys(self, prefix: str = "") -> set[str]:
        return {info.key for page in self._store.pages(prefix) for info in page}


def _decided(keys: set[str]) -> bool:
    return any(key.endswith("/COMMIT_STARTED") for key in keys)
