"""Find path conflicts: a file and a folder with the same name, which a file system cannot hold.

They are found while the plan is made, before anything is visible, because a completion that cannot succeed
would revert the whole job. Object stores have no such conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree, Obstacle, folders_of
from lockgate.storage_core.stores.protocol import in_pages


@dataclass(frozen=True)
class PathConflicts:
    """Obstacles to a plan's keys, and the files among them that the plan backs up."""

    store: Store
    obstacles: tuple[Obstacle, ...] = ()
    _backed_up: set[str] = field(default_factory=set)

    def mark(self, file: RemovedFile) -> RemovedFile:
        """Return a file that the plan removes, marked if it must be backed up."""
        if not file.version or not any(_is_part_of(file.listed_key, obstacle) for obstacle in self.obstacles):
            return file
        self._backed_up.add(file.listed_key)
        return msgspec.structs.replace(file, in_the_way=True)

    def refuse_rest(self) -> None:
        """Refuse obstacles that were not marked.

        Raises:
            ConflictError: An obstacle remains; the message names both keys; nothing was changed.
        """
        for obstacle in self.obstacles:
            if not self._is_backed_up(obstacle.blocker):
                raise ConflictError(
                    f"{self.store.url}: {obstacle.blocker} is in the way of {obstacle.key}, and a file "
                    "system cannot have a file and a folder of one name; nothing was published; move it "
                    "away, or write to another name"
                )

    def _is_backed_up(self, obstacle: str) -> bool:
        if not obstacle.endswith("/"):
            return obstacle in self._backed_up
        found = [info.key for page in self.store.pages(obstacle) for info in page]
        return bool(found) and self._backed_up.issuperset(found)


def find_path_conflicts(
    store: Store, keys: Iterable[str], is_written: Callable[[str], bool]
) -> PathConflicts:
    """Return the conflicts between a plan's keys and the destination.

    Args:
        store: Store of the destination.
        keys: Keys of the plan; consumed only on file systems.
        is_written: Return whether the plan writes a key.

    Raises:
        ConflictError: Two keys of the plan conflict; the message names both; nothing was changed.
    """
    if not isinstance(store, FileTree):
        return PathConflicts(store)
    found: dict[str, Obstacle] = {}  # by path: one obstacle can block many keys
    for batch in in_pages(keys, SHARD_ENTRIES):
        for key in batch:
            for folder in filter(is_written, folders_of(key)):
                raise ConflictError(
                    f"{store.url}: the job writes {folder} and {key}, and a file system cannot have a file "
                    "and a folder of one name; nothing was published; give one of them another name"
                )
        found.update((obstacle.blocker, obstacle) for obstacle in store.obstacles(batch))
    return PathConflicts(store, tuple(found.values()))


def _is_part_of(key: str, obstacle: Obstacle) -> bool:
    return key == obstacle.blocker or (obstacle.blocker.endswith("/") and key.startswith(obstacle.blocker))
