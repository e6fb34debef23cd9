"""Real volumes that fail, or whose disks and stores do, when a test says so."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Volume
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import ObjectInfo


@dataclass
class FaultyVolume:
    """A real volume that goes out of reach, restarts and loses answers.

    Attributes:
        open: Opens it.
        is_up: Whether it can be reached.
        loses: Names of calls whose next answer is lost.
        refuses: Names of calls that fail next, without an effect.
    """

    open: Callable[[], Volume]
    is_up: bool = True
    loses: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.opened = self.open()

    def restart(self) -> None:
        self.opened.close()
        self.opened = self.open()

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        if self.is_up:
            self.opened.acknowledge(block, stamp, length_bytes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: object) -> Any:
        if not self.is_up:
            raise StoreUnavailableError(f"{name}: the volume is out of reach")
        if name in self.refuses:
            self.refuses.discard(name)
            raise StoreUnavailableError(f"{name} was refused on purpose")
        done = getattr(self.opened, name)(*arguments)
        if name in self.loses:
            self.loses.discard(name)
            raise OutcomeUnknownError(f"{name}: the answer was lost on purpose")
        return done


FAULTS: Final = ("full", "no sync", "lost")


class FaultyPlace(Protocol):
    """Where a volume is."""

    def fail(self, fault: str) -> None:
        """Fail in one of the ways of `FAULTS` from here on, or work again if it is empty."""

    def start(self) -> Volume:
        """Open the volume, after a restart too."""

    def stop(self) -> None:
        """End the process that has the volume open."""


class FailingDisk(Disk):
    """A disk of which some calls of one kind fail."""

    def __init__(self) -> None:
        self.fail("", 0, range(0))

    def fail(self, call: str, error: int, times: range) -> None:
        """Let the calls of a kind, `write` or `sync`, fail; they are counted from 1 on."""
        self.call, self.error, self.fails, self.count = call, error, times, 0

    def write(self, file: int, position: int, *pieces: bytes) -> None:
        if self._is_due("write"):
            data = b"".join(pieces)
            super().write(file, position, data[: len(data) // 2])
            raise OSError(self.error, "on purpose")
        super().write(file, position, *pieces)

    def sync(self, file: int) -> None:
        if self._is_due("sync"):
            raise OSError(self.error, "on purpose")
        super().sync(file)

    def sync_data(self, file: int) -> None:
        if self._is_due("sync"):
            raise OSError(self.error, "on purpose")
        super().sync_data(file)

    def _is_due(self, call: str) -> bool:
        if call != self.call:
            return False
        self.count += 1
        return self.count in self.fails


class DirectoryPlace:
    """A directory on a faulty disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = FailingDisk()
        self._volume: DirectoryVolume | None = None

    def fail(self, fault: str) -> None:
        call, error = ("write", errno.ENOSPC) if fault == "full" else ("sync", errno.EIO)
        self._disk.fail(call if fault else "", error, range(1, 10**9))

    def start(self) -> Volume:
        self._volume = DirectoryVolume(self._folder, disk=self._disk)
        return self._volume

    def stop(self) -> None:
        if self._volume is not None:
            self._volume.close()


class BucketPlace(InstrumentedStore):
    """A store that refuses creations, or loses their answers."""

    fault = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(folder))

    def create(self, key: str, data: bytes) -> ObjectInfo:
        if self.fault in {"full", "no sync"}:
            raise StoreUnavailableError("refused on purpose")
        created = super().create(key, data)
        if self.fault == "lost":
            self.fault = ""
            raise OutcomeUnknownError("lost on purpose")
        return created

    def fail(self, fault: str) -> None:
        self.fault = fault

    def start(self) -> Volume:
        return S3Volume(self)

    def stop(self) -> None:
        self.fault = ""


def places(kind: str, root: Path) -> Sequence[FaultyPlace]:
    """Return three places of one kind, or of both."""
    kinds = {
        "directory": [DirectoryPlace] * 3,
        "s3": [BucketPlace] * 3,
        "mixed": [DirectoryPlace, BucketPlace, DirectoryPlace],
    }
    return [place(root / f"volume-{number}") for number, place in enumerate(kinds[kind])]
