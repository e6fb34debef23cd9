"""A real volume that goes out of reach, restarts and loses answers when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Usage, Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp


@dataclass
class RestartingVolume:
    """A volume in a directory, opened again by `restart`."""

    folder: Path
    opened: DirectoryVolume = field(init=False)

    def __post_init__(self) -> None:
        self.opened = DirectoryVolume(self.folder)

    def restart(self) -> None:
        self.opened.close()
        self.opened = DirectoryVolume(self.folder)


@dataclass
class FaultyVolume:
    """A `Volume` before another one.

    Attributes:
        volume: Returns the other one.
        restart: Restarts it.
        is_up: Whether it can be reached.
        loses: Names of calls whose next answer is lost.
        refuses: Names of calls that fail next, without an effect.
    """

    volume: Callable[[], Volume]
    restart: Callable[[], None]
    is_up: bool = True
    loses: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)

    @property
    def id(self) -> VolumeId:
        return self.volume().id

    def claim(self, journal: str) -> None:
        self._call("claim", journal)

    def answers(self) -> bool:
        return self.is_up and self.volume().answers()

    def close(self) -> None:
        self.volume().close()

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        if self.is_up:
            self.volume().acknowledge(block, stamp, length_bytes)

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        return self._call("create", block, stamp)  # type: ignore[no-any-return]

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        return self._call("append", block, stamp, offset, data)  # type: ignore[no-any-return]

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        return self._call("flush", block, stamp)  # type: ignore[no-any-return]

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        return self._call("read", block, stamp, offset, size)  # type: ignore[no-any-return]

    def stat(self, block: BlockId) -> Replica | None:
        return self._call("stat", block)  # type: ignore[no-any-return]

    def fence(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Replica:
        return self._call("fence", block, stamp, committed)  # type: ignore[no-any-return]

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        return self._call("trim", block, stamp, length_bytes)  # type: ignore[no-any-return]

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        return self._call("finish", block, stamp, length_bytes, state)  # type: ignore[no-any-return]

    def delete(self, block: BlockId, stamp: Stamp) -> bool:
        return self._call("delete", block, stamp)  # type: ignore[no-any-return]

    def quarantine(self, block: BlockId, stamp: Stamp) -> bool:
        return self._call("quarantine", block, stamp)  # type: ignore[no-any-return]

    def quarantined(self, after: BlockId | None, limit: int) -> tuple[BlockId, ...]:
        return self._call("quarantined", after, limit)  # type: ignore[no-any-return]

    def discard(self, block: BlockId) -> bool:
        return self._call("discard", block)  # type: ignore[no-any-return]

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        return self._call("replicas", after, limit)  # type: ignore[no-any-return]

    def usage(self) -> Usage:
        return self._call("usage")  # type: ignore[no-any-return]

    def _call(self, name: str, *arguments: object) -> Any:
        if not self.is_up:
            raise StoreUnavailableError(f"{name}: the volume is out of reach")
        if name in self.refuses:
            self.refuses.discard(name)
            raise StoreUnavailableError(f"{name} was refused on purpose")
        done = getattr(self.volume(), name)(*arguments)
        if name in self.loses:
            self.loses.discard(name)
            raise OutcomeUnknownError(f"{name}: the answer was lost on purpose")
        return done
