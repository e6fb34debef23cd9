"""A journal, volumes in memory that a test takes away and damages, and two files on them."""

from __future__ import annotations

from typing import Self

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.files.namespace.rows import Block, Member
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.settings import load_settings
from tests.support.files.file_world import TEXT
from tests.support.files.memory_volume import MemoryVolume
from tests.support.journal.checkpoints import JournalWorld

NAMES = tuple(VolumeId(f"volume-{number}") for number in range(3))
SPARE = VolumeId("volume-3")


class MemoryWorld:
    """A journal, three volumes in memory, and two files of four blocks in all.

    Args:
        journals: Where the journal is.
        has_spare: Whether there is a fourth volume, without replicas; all are registered then.
    """

    def __init__(self, journals: JournalWorld, *, has_spare: bool = False) -> None:
        self.journals = journals
        self.journal = journals.open()
        self.clock = journals.clock
        self.volumes = {name: MemoryVolume(id=name) for name in NAMES}
        self.files = self.process()
        with self.files.create("/a.log") as writer:
            writer.write(TEXT)
        with self.files.create("/b.log") as writer:
            writer.write(b"abc")
        if has_spare:
            self.volumes[SPARE] = MemoryVolume(id=SPARE)
            self.register()
            self.files.close()
            self.files = self.process(*self.volumes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        FAILPOINTS.observer = None
        self.files.close()
        self.journal.close()

    def register(self) -> None:
        """Register a URL of each volume."""
        for name in self.volumes:
            self.journal.apply(RegisterVolume(volume=name, url=f"s3://{name}/"))

    def process(self, *names: VolumeId) -> Files:
        volumes = {name: self.volumes[name] for name in names or NAMES}
        return Files(self.journal, volumes, load_settings(), block_bytes=8)

    def blocks(self) -> list[BlockId]:
        with self.journal.reading() as reading:
            return [BlockId(row.block) for row in reading.where(Block, {})]

    def members(self, block: int) -> list[str]:
        with self.journal.reading() as reading:
            return [row.volume for row in reading.where(Member, {"block": block})]

    def faults(self) -> dict[tuple[int, str], Fault]:
        with self.journal.reading() as reading:
            rows = reading.where(Member, {})
        return {(row.block, row.volume): row.fault for row in rows if row.fault is not None}

    def findings(self, path: str = "", *, verify: bool = True) -> list[tuple[int | None, Problem, str]]:
        """Return block, problem and path of what a check finds."""
        found = self.files.upkeep.check(path, verify=verify).findings()
        return [(one.block, one.problem, one.path) for one in found]

    def problems(self) -> set[Problem]:
        """Return the problems that a check finds."""
        return {problem for _, problem, _ in self.findings()}

    def entries(self) -> int:
        return self.journal.status().stamp.sequence
