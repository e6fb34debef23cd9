"""Refuse path conflicts: a file and a folder with the same name, which a file system cannot have.

They are found while the plan is made, before anything is visible, because a completion that cannot succeed
would revert the whole job. Object stores have no such conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree, folders_of
from lockgate.storage_core.stores.protocol import in_pages


def refuse_path_conflicts(store: Store, keys: Iterable[str], is_written: Callable[[str], bool]) -> None:
    """Refuse a plan whose keys conflict with each other, or with files and folders of the destination.

    Args:
        store: Store of the destination.
        keys: Keys of the plan; consumed only on file systems.
        is_written: Return whether the plan writes a key.

    Raises:
        ConflictError: Two names conflict; the message has both; nothing was changed.
    """
    if not isinstance(store, FileTree):
        return
    for batch in in_pages(keys, SHARD_ENTRIES):
        for key in batch:
            for folder in filter(is_written, folders_of(key)):
                raise ConflictError(
                    f"{store.url}: the job writes {folder} and {key}, and a file system cannot have a file "
                    "and a folder of one name; nothing was published; give one of them another name"
                )
        for obstacle in store.obstacles(batch):
            raise ConflictError(
                f"{store.url}: {obstacle.blocker} is in the way of {obstacle.key}, and a file system cannot "
                "have a file and a folder of one name; nothing was published; move it away, or write to "
                "another name"
            )
