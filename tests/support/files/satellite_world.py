"""Two journals with a volume each, one of them the satellite of the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.observers.hot_standby import HotStandby
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.satellite.move import add_mount
from lockgate.storage_core.satellite.overlay import Overlay
from lockgate.storage_core.satellite.union_reads import Side
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import ManualClock, dying
from tests.support.files.faulty_volumes import FaultyDirectory
from tests.support.journal.observers import SnapshotObserver

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
        self.volumes = {side: {VolumeId(side): FaultyDirectory(root / side, side)} for side in self.urls}
        self.processes: list[Overlay] = []
        self.sides: list[Side] = []
        self.observers: list[Client] = []
        self.files = self.process()

    def side(self, name: str, *, is_behind: bool = False) -> Side:
        journal = open_journal(self.urls[name], name, clock=self.clock)
        reads = self.observer(journal) if is_behind else None
        return Side(Files(journal, self.volumes[name], self.settings, reads=reads, block_bytes=4), journal)

    def observer(self, journal: Journal) -> Client:
        observer = SnapshotObserver(self.urls[journal.name], journal)
        observer.catch_up()
        self.observers.append(Client(journal, [cast(HotStandby, observer)], clock=self.clock))
        self.observers[-1].sync()
        return self.observers[-1]

    def process(self, *, is_behind: bool = False) -> Overlay:
        """Return the files of a new process; its observers of both journals stay at what is there now."""
        journal = open_journal(self.urls[self.name], self.name, clock=self.clock)
        new = self.side(f"{self.name}-new", is_behind=is_behind)
        reads = self.observer(journal) if is_behind else None
        volumes = self.volumes[self.name]
        files = Overlay(journal, volumes, self.settings, lambda _: new, reads=reads, block_bytes=4)
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
        for client in self.observers:
            client.close()
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
