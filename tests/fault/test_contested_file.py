"""Two processes take one file from each other: every acknowledged line is there once, in its order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.errors import FencedError, StoreUnavailableError
from lockgate.storage_core.files.file_recovery import settle
from lockgate.storage_core.files.namespace.volume_urls import register_members
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import DeleteFailure, ObjectInfo
from tests.support.files.file_world import FileWorld
from tests.support.journal.checkpoints import JournalWorld
from tests.support.soak import rounds

PATH = "/a.log"
LINES = 5
"""Lines that a process has acknowledged before it lets the other one take the file."""
LINE_BYTES = 14


class Bucket(LocalStore):
    """Lists all keys of one moment, as S3 does; a directory is read while it changes."""

    lock = threading.RLock()

    def pages(self, prefix: str = "", **limits: Any) -> Iterator[Sequence[ObjectInfo]]:
        with self.lock:
            return iter(list(super().pages(prefix, **limits)))

    def create(self, key: str, data: bytes) -> ObjectInfo:
        with self.lock:
            return super().create(key, data)

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        with self.lock:
            return super().delete_many(keys)


class Contest:
    """Two processes, each with volumes of its own over the same folders.

    Attributes:
        takes: How often the file is taken.
        acknowledged: The lines whose flush has returned.
    """

    def __init__(self, world: FileWorld, volumes: Callable[[], dict[VolumeId, Volume]], takes: int) -> None:
        self._world = world
        self._volumes = volumes
        self._members = tuple(volumes())
        self.takes = takes
        self.acknowledged: list[bytes] = []
        register_members(world.journal, self._members)
        world.files.create(PATH, members=self._members).close()

    def run(self) -> None:
        turns = [threading.Semaphore(1), threading.Semaphore(0)]
        with ThreadPoolExecutor(2) as threads:
            both = [
                threads.submit(self._process, name, turns[at], turns[1 - at]) for at, name in enumerate("ab")
            ]
        for one in both:
            one.result()

    def _process(self, name: str, mine: threading.Semaphore, other: threading.Semaphore) -> None:
        volumes = self._volumes()
        try:
            for take in range(self.takes // 2):
                mine.acquire()
                blocks = self._world.take(PATH, f"{name} {take}", self._members)
                writer = FileWriter(blocks, volumes, block_bytes=7 * LINE_BYTES)
                self._write(b"%s %04d" % (name.encode(), take), writer, other)
        finally:
            other.release(self.takes)  # also after an error

    def _write(self, name: bytes, writer: FileWriter, other: threading.Semaphore) -> None:
        """Write lines until the other process has the file: it takes it in the middle of a call."""
        number = 0
        try:
            while number < 100 * LINES:  # the other one has ended
                line = b"%s %06d\n" % (name, number)
                writer.write(line)
                writer.flush()
                self.acknowledged.append(line)
                number += 1
                if number == LINES:
                    other.release()
        except (FencedError, StoreUnavailableError):
            if number < LINES:
                other.release()

    def check(self) -> None:
        blocks, volumes = self._world.take(PATH, "recovery"), self._volumes()
        settle(blocks, volumes)
        found = Reader(blocks.records, volumes).read().splitlines(keepends=True)
        assert len(set(found)) == len(found)
        assert found == sorted(found, key=lambda line: (line.split()[1], line))  # a and b take turns
        assert set(self.acknowledged) <= set(found)
        assert len(self.acknowledged) >= self.takes * LINES


@pytest.mark.parametrize("kind", ["directories", "bucket"])
def test_two_processes_that_take_a_file_from_each_other_lose_no_acknowledged_line(
    tmp_path: Path, kind: str
) -> None:
    def volumes() -> dict[VolumeId, Volume]:
        if kind == "bucket":
            opened: list[Volume] = [S3Volume(InstrumentedStore(Bucket(tmp_path / "bucket")))]
        else:
            opened = [DirectoryVolume(tmp_path / name) for name in ("one", "two")]
        return {volume.id: volume for volume in opened}

    with FileWorld(JournalWorld(tmp_path, f"sqlite:///{tmp_path}/journal.db", ""), tmp_path) as world:
        takes = rounds(100, 1000) if kind == "directories" else rounds(20, 200)
        contest = Contest(world, volumes, takes)
        contest.run()
        contest.check()
