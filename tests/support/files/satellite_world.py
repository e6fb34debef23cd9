"""Two journals with volumes in memory, one of them the satellite of the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.satellite.move import add_mount
from lockgate.storage_core.satellite.overlay import Overlay, Side
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import ManualClock, dying
from tests.support.files.memory_volume import MemoryVolume

EXAMPLES = count()


class SatelliteWorld:
    """A default journal, a satellite, and processes that use both.

    Args:
        root: Directory of the journals.
        url: Database of both; by default each has its own.
    """

    def __init__(self, root: Path, url: str = "", **settings: Any) -> None:
        self.clock = ManualClock()
        self.settings = load_settings(parallelism=1, **settings)
        name = f"example-{next(EXAMPLES)}"
        self.urls = {
            name: url or f"sqlite:///{root / 'old.db'}",
            f"{name}-new": url or f"sqlite:///{root / 'new.db'}",
        }
        self.name = name
        self.volumes = {side: {VolumeId(f"{side}-volume"): MemoryVolume()} for side in self.urls}
        self.processes: list[Overlay] = []
        self.sides: list[Side] = []
        self.files = self.process()

    def side(self, name: str) -> Side:
        journal = open_journal(self.urls[name], name, clock=self.clock)
        return Side(Files(journal, self.volumes[name], self.settings, block_bytes=4), journal)

    def process(self) -> Overlay:
        """Return the files of a new process."""
        journal = open_journal(self.urls[self.name], self.name, clock=self.clock)
        new = self.side(f"{self.name}-new")
        files = Overlay(journal, self.volumes[self.name], self.settings, lambda _: new, block_bytes=4)
        self.sides.append(new)
        self.processes.append(files)
        return files

    def restart(self) -> None:
        """Let the process die, its leases lapse, and begin another one."""
        FAILPOINTS.observer = None
        self.files = self.process()
        self.clock.now += 2 * self.settings.lease_hard_s
        self.files.recover_lapsed()

    def mount(self, prefix: str) -> None:
        name, identity = f"{self.name}-new", self.sides[0].journal.identity
        mount = Mount(prefix=prefix, satellite="logs", journal=name, identity=identity, added_s=0.0)
        add_mount(self.files, mount)

    def close(self) -> None:
        FAILPOINTS.observer = None
        for side in (*self.sides, *(Side(files, files.journal) for files in self.processes)):
            side.files.close()
            side.journal.close()


def tree(files: Files) -> dict[str, bytes | None]:
    """Return the tree as a reader sees it: bytes of files, None for directories."""
    found: dict[str, bytes | None] = {}
    waiting = ["/"]
    while waiting:
        at = waiting.pop()
        after = None
        while page := files.list(at, after):
            after = page[-1].name
            for one in page:
                path = f"{at.rstrip('/')}/{one.name}"
                assert path not in found, f"{path} is listed twice"
                found[path] = None if one.is_directory else files.open(path).read()
                if one.is_directory:
                    waiting.append(path)
    return found


@contextmanager
def at_each_step(seen: Any) -> Iterator[None]:
    """Call a function before and after each call of a journal or a volume."""
    is_looking = False

    def observe(name: str) -> None:
        nonlocal is_looking
        if not is_looking:
            is_looking = True
            try:
                seen(name)
            finally:
                is_looking = False

    FAILPOINTS.observer = dying(observe)
    try:
        yield
    finally:
        FAILPOINTS.observer = None
