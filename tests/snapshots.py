"""What a process that dies leaves in a directory: a snapshot of it at every storage call of one run.

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
from tests.commit_world import ManualClock, World

_numbers = count()


@dataclass(frozen=True)
class Snapshot:
    """What stood at one or more points in a row between which nothing changed."""

    points: tuple[str, ...]
    root: Path

    def world(self) -> World:
        """Return the destination as another process finds it."""
        return World(self.root, str(self.root / "dest"))

    def copy_to(self, root: Path) -> World:
        """Return a destination of its own that is as this one was."""
        _link_all(self.root, root)
        return World(root, str(root / "dest"))

    def move_to(self, world: World) -> World:
        """Return the destination under the name that it had, by which a journal knows it.

        Args:
            world: Where the run was; what stands there now goes.
        """
        shutil.rmtree(world.root)
        self.root.rename(world.root)
        return replace(world, clock=ManualClock(world.clock.now))


def snapshots_of(world: World, run: Callable[[], object], into: Path) -> list[Snapshot]:
    """Run and keep what stood before and after each storage call, and at the end.

    Args:
        world: `one_by_one`.
        run: Uses the world.
        into: On the same file system.
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
    """Return the same destination, whose calls come one at a time."""
    return replace(world, options={**world.options, "parallelism": 1})


@contextmanager
def observed(look: Callable[[str], None]) -> Iterator[None]:
    """Be told of every point that is passed."""
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
    return name != "journal.db-shm"  # SQLite makes it anew from the write-ahead log
