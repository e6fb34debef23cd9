"""Sizes of a destination's files by folder, from one listing: a folder is reported when it was left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lockgate.storage_core.commit.destination.conflict_mode import partition_of
from lockgate.storage_core.commit.destination.visible_files import owner_of, visible_files
from lockgate.storage_core.ids import ShortId, short_id_in
from lockgate.storage_core.stores import Store

KIB: Final = 1024
BOUNDS: Final = (64 * KIB, KIB**2, 16 * KIB**2, 64 * KIB**2, 256 * KIB**2, KIB**3)
"""Sizes below which files are counted; larger ones are counted last."""
WRITERS: Final = 100_000
"""Jobs whose files are counted at most."""
SHOWN_WRITERS: Final = 3


class FolderSizes(msgspec.Struct, kw_only=True):
    """The files of one folder (partition): how many, how many smaller than the target, bytes, and jobs."""

    folder: str
    files: int = 0
    small: int = 0
    size: int = 0
    jobs: int = 0


@dataclass
class SizeReport:
    """Reports folders while it lists; the totals are those of the folders so far.

    Attributes:
        store: Store of the destination.
        target_bytes: Size below which a file is small.
        histogram: Number of files below each of `BOUNDS`, then of larger ones.
    """

    store: Store
    target_bytes: int
    total: FolderSizes = field(default_factory=lambda: FolderSizes(folder=""))
    histogram: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    _writers: Counter[ShortId] = field(default_factory=Counter)

    def folders(self, after: str = "") -> Iterator[FolderSizes]:
        """Yield each folder with files, after the folders in it.

        Args:
            after: Folder after which to begin.
        """
        open_folders: list[tuple[FolderSizes, set[ShortId]]] = []
        start = f"{after}/\U0010ffff" if after else ""
        for info in visible_files(self.store, after=start):
            folder = partition_of(info.key)
            while open_folders and not _is_in(folder, open_folders[-1][0].folder):
                yield open_folders.pop()[0]
            if not open_folders or open_folders[-1][0].folder != folder:
                open_folders.append((FolderSizes(folder=folder), set()))
            sizes, jobs = open_folders[-1]
            self.histogram[sum(info.size >= bound for bound in BOUNDS)] += 1
            for each in (sizes, self.total):
                each.files += 1
                each.size += info.size
                each.small += info.size < self.target_bytes
            short = short_id_in(info.key)
            if short is not None and (short in self._writers or len(self._writers) < WRITERS):
                self._writers[short] += 1
                jobs.add(short)
                sizes.jobs, self.total.jobs = len(jobs), len(self._writers)
        while open_folders:
            yield open_folders.pop()[0]

    def writers(self) -> list[tuple[str, int]]:
        """Return the jobs that wrote most files, with their number."""
        most = self._writers.most_common(SHOWN_WRITERS)
        return [(owner_of(self.store, short) or f"unknown ({short})", files) for short, files in most]


def _is_in(folder: str, other: str) -> bool:
    return not other or f"{folder}/".startswith(f"{other}/")
