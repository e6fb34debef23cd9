"""Snapshots of a directory at every storage call of one run: the state that a crash would leave.

A snapshot gives every file a second name, so inodes, by which uploads are recognised, stay as they are. Only
files that are no sealed upload yet are written in place, and no recovery reads those. A journal's file is
written in place, too: it is copied, as it stands between two transactions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import ManualClock, World

_numbers = count()


@dataclass(frozen=True)
class Snapshot:
    """The files at one or more consecutive points without a change."""

    points: tuple[str, ...]
    root: Path

    def world(self) -> World:
        """Return the destination as another process finds it."""
        return World(self.root, str(self.root / "dest"))

    def copy_to(self, root: Path) -> World:
        """Return a separate copy of the destination at that point."""
        _link_all(self.root, root)
        return World(root, str(root / "dest"))

    def move_to(self, world: World) -> World:
        """Restore the destination under its original path, by which a journal knows it.

        Args:
            world: World of the run; its current files are deleted.
        """
        shutil.rmtree(world.root)
        self.root.rename(world.root)
        return replace(world, clock=ManualClock(world.clock.now))


def snapshots_of(world: World, run: Callable[[], object], into: Path) -> list[Snapshot]:
    """Run and keep the files before and after each storage call, and at the end.

    Args:
        world: `one_by_one`.
        run: Function that uses the world.
        into: Folder on the same file system.
    """
    seen: list[tuple[frozenset[_File], list[str], Path]] = []

    def look(point: str) -> None:
        state = frozenset(_files(world.root))
        if not seen or seen[-1][0] != state:
            seen.append((state, [], _link_all(world.root, into / f"snapshot-{next(_numbers)}")))
        seen[-1][1].append(point)

    with observed(look):
        run()
    look("the end")
    return [Snapshot(tuple(points), root) for _, points, root in seen]


def one_by_one(world: World) -> World:
    """Return the same destination with serial calls."""
    return replace(world, options={**world.options, "parallelism": 1})


@contextmanager
def observed(look: Callable[[str], None]) -> Iterator[None]:
    """Call an observer at every point that is passed."""
    FAILPOINTS.observer = look
    try:
        yield
    finally:
        FAILPOINTS.observer = None


_File = tuple[str, int, int, int]


def _files(root: Path) -> Iterator[_File]:
    for folder, _, names in os.walk(root):
        for name in filter(_is_kept, names):
            path = Path(folder, name)
            status = path.lstat()
            yield str(path), status.st_ino, status.st_mtime_ns, status.st_size


def _link_all(root: Path, to: Path) -> Path:
    for folder, _, names in os.walk(root):
        copy = to / Path(folder).relative_to(root)
        copy.mkdir(parents=True)
        for name in filter(_is_kept, names):
            if _is_journal(name):
                shutil.copyfile(Path(folder, name), copy / name)
            else:
                (copy / name).hardlink_to(Path(folder, name))
    return to


def _is_journal(name: str) -> bool:
    return name.startswith("journal.db")


def _is_kept(name: str) -> bool:
    return name != "journal.db-shm"  # SQLite rebuilds it from the write-ahead log
