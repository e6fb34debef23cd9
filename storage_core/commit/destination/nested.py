"""Find destinations nested in a destination: their files do not belong to the outer one.

A folder is a destination if its `_lockgate/` has any object. Nearly all nested destinations are found in the
listing itself; one extra request is made for each folder whose `_lockgate/` has not been listed yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.stores import ObjectInfo, Store
from lockgate.storage_core.stores.file_tree import folders_of


@dataclass
class NestedDestinations:
    """Lists a destination and finds the folders in it that are destinations themselves."""

    store: Store
    _known: dict[str, bool] = field(default_factory=dict)
    _prefix: str = ""
    _last: str | None = None

    def pages(self, prefix: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """List as `Store.pages` does, and record the nested destinations of each page before yielding it."""
        self._last = None
        for page in self.store.pages(prefix):
            self._learn(prefix, page)
            yield page

    def holding(self, key: str) -> str | None:
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
