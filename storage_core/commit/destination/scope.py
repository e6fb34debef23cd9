"""Scope of a conflict mode: the whole destination, or the partitions that receive data.

Source: commit protocol, step 4; S3A committers, "The Partitioned Staging Committer".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def partition_of(key: str) -> str:
    """Return the folder that is a key's partition, "" for the root.

    The partition ends with the last folder of the form `column=value`. Without one it is the file's folder:
    `day=1/hour=2/x/a` → `day=1/hour=2`, `2026/05/a` → `2026/05`.
    """
    folders = key.split("/")[:-1]
    last = max((depth for depth, folder in enumerate(folders, start=1) if "=" in folder), default=None)
    return "/".join(folders[:last])


@dataclass(frozen=True)
class Scope:
    """The keys that a mode applies to.

    Attributes:
        partitions: Folders that receive data; None for the whole destination.
    """

    partitions: frozenset[str] | None = None

    def covers(self, key: str) -> bool:
        """Return whether the mode applies to this key."""
        return self.partitions is None or partition_of(key) in self.partitions

    def prefixes(self, others: Iterable[str] = ()) -> list[str]:
        """Return the prefixes to list: those of the scope and of the partitions of other keys.

        No prefix contains another, so nothing is listed twice.
        """
        if self.partitions is None:
            return [""]
        wanted = {f"{folder}/" if folder else "" for folder in {*self.partitions, *map(partition_of, others)}}
        return [prefix for prefix in sorted(wanted) if not _is_within(prefix, wanted)]


EVERYWHERE = Scope()


def _is_within(prefix: str, others: set[str]) -> bool:
    if not prefix:
        return False
    folders = prefix.rstrip("/").split("/")
    above = ("/".join(folders[:depth]) for depth in range(len(folders)))
    return any((f"{folder}/" if folder else "") in others for folder in above)
