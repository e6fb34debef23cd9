"""Destinations below a destination: what lies in them is theirs, whoever lists it.

A folder is one if anything lies in its `_lockgate/`. A listing tells that of nearly all its folders by the
way; the store is asked, once, about the few whose `_lockgate/` the listing has not come to yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.stores import ObjectInfo, Store
from lockgate.storage_core.stores.file_tree import folders_of


@dataclass
class DestinationsBelow:
    """Knows which folders of a destination are destinations themselves."""

    store: Store
    _known: dict[str, bool] = field(default_factory=dict)
    _prefix: str = ""
    _last: str | None = None

    def pages(self, prefix: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """List as `Store.pages` does, and learn from each page before it is given."""
        self._last = None
        for page in self.store.pages(prefix):
            self._learn(prefix, page)
            yield page

    def holding(self, key: str) -> str | None:
        """Return the outermost folder that is a destination and holds this key, None if there is none."""
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
        """Tell whether the listing has come to where a folder's `_lockgate/` would stand."""
        inside = f"{folder}/{layout.ROOT}"
        return self._last is not None and inside.startswith(self._prefix) and inside <= self._last
