"""Files and folders of one name: on a file system the one is in the other's way.

Found while the plan is frozen, before anything is visible: a completion that cannot succeed would revert the
whole job. On object stores both may stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from lockgate.storage_core.commit.records.plan import RemovedFile
from lockgate.storage_core.commit.records.shards import batches
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree, Obstacle, folders_of


@dataclass(frozen=True)
class PathConflicts:
    """What stands in the way of a plan's keys, and which of it the plan moves aside."""

    store: Store
    obstacles: tuple[Obstacle, ...] = ()
    _moved: set[str] = field(default_factory=set)

    def mark(self, file: RemovedFile) -> RemovedFile:
        """Return a file that the plan takes away, marked if it has to make way."""
        if not file.version or not any(_is_of(file.key, obstacle) for obstacle in self.obstacles):
            return file
        self._moved.add(file.key)
        return msgspec.structs.replace(file, in_the_way=True)

    def refuse_rest(self) -> None:
        """Refuse what is in the way and was not marked.

        Raises:
            ConflictError: The message names both keys; nothing was changed.
        """
        for obstacle in self.obstacles:
            if not self._makes_way(obstacle.blocker):
                raise ConflictError(
                    f"{self.store.url}: {obstacle.blocker} stands in the way of {obstacle.key}, and a file "
                    "system takes one name for a file or for a folder; nothing was published; move it away, "
                    "or write to another name"
                )

    def _makes_way(self, standing: str) -> bool:
        if not standing.endswith("/"):
            return standing in self._moved
        found = [info.key for page in self.store.pages(standing) for info in page]
        return bool(found) and self._moved.issuperset(found)


def find_path_conflicts(
    store: Store, keys: Iterable[str], is_written: Callable[[str], bool]
) -> PathConflicts:
    """Look for what is in the way of a plan's keys.

    Args:
        store: Of the destination.
        keys: Of the plan; read only on file systems.
        is_written: Whether the plan writes a key.

    Raises:
        ConflictError: Another key of the plan is; the message names both; nothing was changed.
    """
    if not isinstance(store, FileTree):
        return PathConflicts(store)
    found: dict[str, Obstacle] = {}  # one obstacle is in the way of many keys
    for batch in batches(keys):
        for key in batch:
            for folder in filter(is_written, folders_of(key)):
                raise ConflictError(
                    f"{store.url}: the job writes {folder} and {key}, and a file system takes one name for a "
                    "file or for a folder; nothing was published; give one of them another name"
                )
        found.update((obstacle.blocker, obstacle) for obstacle in store.obstacles(batch))
    return PathConflicts(store, tuple(found.values()))


def _is_of(key: str, obstacle: Obstacle) -> bool:
    return key == obstacle.blocker or (obstacle.blocker.endswith("/") and key.startswith(obstacle.blocker))
