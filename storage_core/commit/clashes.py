"""Files and folders of one name: on a file system the one is in the other's way.

Found while the plan is frozen, before anything is visible: a completion that cannot succeed would revert the
whole job. On object stores both may stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from storage_core.commit.shards import batches
from storage_core.errors import ConflictError
from storage_core.stores import Store
from storage_core.stores.file_tree import FileTree, folders_of


def refuse_clashes(store: Store, keys: Iterable[str], is_written: Callable[[str], bool]) -> None:
    """Refuse keys of a plan in whose way something stands, or another key of the same plan.

    Args:
        store: Of the destination.
        keys: Of the plan; read only on file systems.
        is_written: Whether the plan writes a key.

    Raises:
        ConflictError: One is in the way; the message names both; nothing was changed.
    """
    if not isinstance(store, FileTree):
        return
    for batch in batches(keys):
        for key in batch:
            for folder in filter(is_written, folders_of(key)):
                raise ConflictError(
                    f"{store.url}: the job writes {folder} and {key}, and a file system takes one name for a "
                    "file or for a folder; nothing was published; give one of them another name"
                )
        for key, standing in store.obstacles(batch):
            raise ConflictError(
                f"{store.url}: {standing} stands in the way of {key}, and a file system takes one name for a "
                "file or for a folder; nothing was published; move it away, or write to another name"
            )
