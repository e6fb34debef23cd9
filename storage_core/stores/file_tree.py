"""What only a store in a directory can do: take a finished file as it lies, and move what is in a key's way.

Object stores have no folders, so a file `a` and a file `a/b` live side by side there; on a file system one
of them is in the other's way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores.protocol import PendingUpload


class Obstacle(NamedTuple):
    """What keeps a key from becoming a file."""

    key: str
    """The key that cannot be written."""
    standing: str
    """A file where the key needs a folder, or, ending in `/`, the folder that has the key's own name."""


@runtime_checkable
class FileTree(Protocol):
    """A store whose keys are files in folders."""

    def adopt_file(self, local: Path, key: str, token: Token) -> PendingUpload:
        """Take a finished file for a pending upload, by a second name: no byte is copied.

        The file is made durable. Its first name stays; who writes to it later spoils the upload, which then
        cannot be completed.

        Args:
            local: A regular file on the store's file system; no link.
            key: Where it will be visible.
            token: As for `Store.begin_upload`.

        Raises:
            UnsupportedStoreError: It lies on another file system, or that one has no hard links: copy it.
            AccessDeniedError: This user may not give it a second name: copy it.
            InvalidInputError: It is no regular file.
        """

    def move_file(self, key: str, to: str, version: str) -> bool:
        """Give a file another key, if it is still this version; a move that was made already is made.

        A crash in it leaves both keys or one of them; the version stays. Of several moves between two keys,
        in either direction, each meets what the one before it left.

        Returns:
            Whether the file stands at `to`. False: another version or none stands at `key`, or something else
            at `to`; nothing was changed.

        Raises:
            InvalidInputError: `to` cannot be made: a file is in its way.
        """

    def obstacles(self, keys: Sequence[str]) -> list[Obstacle]:
        """Return what stands in the way of keys, hidden or not; in the order of the keys."""


def folders_of(key: str) -> Iterator[str]:
    """Yield the folders that a key lies in, outermost first: `a/b/c` → `a`, `a/b`."""
    names = key.split("/")
    for depth in range(1, len(names)):
        yield "/".join(names[:depth])
