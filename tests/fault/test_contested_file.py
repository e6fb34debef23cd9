"""Two processes take one file from each other: every acknowledged line is there once, in its order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.errors import FencedError, StoreUnavailableError
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.soak import rounds

LINES = 5
"""Lines that a process has acknowledged before it lets the other one take the file."""
LINE_BYTES = 14
JOURNAL = threading.RLock()


class LockedBlocks(MemoryBlocks):
    """The blocks of one holder; its calls are entries, one after another."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        @wraps(found)
        def locked(*arguments: object, **named: object) -> Any:
            with JOURNAL:
                return found(*arguments, **named)

        return locked


class Contest:
    """Two processes, each with volumes of its own over the same folders.

    Attributes:
        takes: How often the file is taken.
        acknowledged: The lines whose flush has returned.
    """

    def __init__(self, volumes: Callable[[], dict[VolumeId, Volume]], takes: int) -> None:
        self._volumes = volumes
        self.takes = takes
        self.journal = MemoryJournal(tuple(volumes()))
        self.acknowledged: list[bytes] = []

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
                with JOURNAL:
                    blocks = LockedBlocks(self.journal, f"{name} {take}")
                writer = Writer(blocks, volumes, block_bytes=7 * LINE_BYTES)
                self._write(b"%s %04d" % (name.encode(), take), writer, other)
        finally:
            other.release()

    def _write(self, name: bytes, writer: Writer, other: threading.Semaphore) -> None:
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


def check(contest: Contest, volumes: dict[VolumeId, Volume]) -> None:
    blocks = MemoryBlocks(contest.journal, "recovery")
    for row in blocks.records():
        if not row.is_settled:
            reseal(blocks, volumes, row.block, ends=ReplicaState.SEALED)
    found = Reader(blocks.records, volumes).read().splitlines(keepends=True)
    assert len(set(found)) == len(found)
    assert found == sorted(found, key=lambda line: (line.split()[1], line))  # a and b take turns
    assert set(contest.acknowledged) <= set(found)
    assert len(contest.acknowledged) >= contest.takes * LINES


@pytest.mark.parametrize("kind", ["directories", "bucket"])
def test_two_processes_that_take_a_file_from_each_other_lose_no_acknowledged_line(
    tmp_path: Path, kind: str
) -> None:
    def volumes() -> dict[VolumeId, Volume]:
        if kind == "bucket":
            opened: list[Volume] = [S3Volume(open_store(str(tmp_path / "bucket"), load_settings()))]
        else:
            opened = [DirectoryVolume(tmp_path / name) for name in ("one", "two")]
        return {volume.id: volume for volume in opened}

    contest = Contest(volumes, rounds(100, 1000) if kind == "directories" else rounds(20, 200))
    contest.run()
    check(contest, volumes())
