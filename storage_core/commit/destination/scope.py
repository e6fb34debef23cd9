"""The reach of a conflict mode: all of the destination, or the partitions that receive data.

Source: commit protocol, step 4; S3A committers, "The Partitioned Staging Committer".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def partition_of(key: str) -> str:
    """Return the folder that is a key's partition, "" for the root.

    The folders down to the last one of the form `column=value`; where there is none, the folder that the
    file lies in: `day=1/hour=2/x/a` → `day=1/hour=2`, `2026/05/a` → `2026/05`.
    """
    folders = key.split("/")[:-1]
    last = max((depth for depth, folder in enumerate(folders, start=1) if "=" in folder), default=None)
    return "/".join(folders[:last])


@dataclass(frozen=True)
class Reach:
    """Tells which keys a mode concerns.

    Attributes:
        partitions: The folders that receive data; None: the whole destination.
    """

    partitions: frozenset[str] | None = None

    def covers(self, key: str) -> bool:
        """Tell whether the mode concerns this key."""
        return self.partitions is None or partition_of(key) in self.partitions

    def prefixes(self, others: Iterable[str] = ()) -> list[str]:
        """Return what has to be listed to see all that is covered, and these other keys' partitions.

        No prefix lies within another, so nothing is listed twice.
        """
        if self.partitions is None:
            return [""]
        wanted = {f"{folder}/" if folder else "" for folder in {*self.partitions, *map(partition_of, others)}}
        return [prefix for prefix in sorted(wanted) if not _is_within(prefix, wanted)]


EVERYWHERE = Reach()


def _is_within(prefix: str, others: set[str]) -> bool:
    if not prefix:
        return False
    folders = prefix.rstrip("/").split("/")
    above = ("/".join(folders[:depth]) for depth in range(len(folders)))
    return any((f"{folder}/" if folder else "") in others for folder in above)
