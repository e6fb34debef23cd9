"""A block, as the journal has it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import TracebackType

import msgspec

from lockgate.storage_core.errors import MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp


class Fault(StrEnum):
    """Why a member's replica is not used: the difference that the journal keeps of a report."""

    LOST = "lost"
    """Its volume answers, and has no replica."""
    STALE = "stale"
    """It missed a reseal, as after the return of an old copy of its disk."""
    CORRUPT = "corrupt"
    """It has another length, or bytes whose checksums do not hold."""


class BlockRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block, as the journal has it.

    Attributes:
        stamp: Its generation stamp at the last commit.
        members: The volumes that have it, without those with a fault.
        length_bytes: Its length at the last commit. The first flush of a block is one; later ones are not.
        pending: Stamp of a reseal that is not committed.
        target_bytes: Target of a truncate that is not committed.
        faults: Members whose replicas readers and reseals do not use, and why.
        acknowledged_bytes: Bytes that all members have, as a renewal of the lease has stored it; only where a
            reader asks for it.
    """

    block: BlockId
    stamp: Stamp
    members: tuple[VolumeId, ...]
    length_bytes: int
    state: ReplicaState
    pending: Stamp | None = None
    target_bytes: int | None = None
    faults: Mapping[VolumeId, Fault] = msgspec.field(default_factory=dict)
    acknowledged_bytes: int = 0

    @property
    def newest(self) -> Stamp:
        """Return the stamp that a commit must name: the pending one, else the committed one."""
        return self.pending or self.stamp

    @property
    def is_settled(self) -> bool:
        """Return whether it is sealed; one that is being written is left to its reseal."""
        return self.state is ReplicaState.SEALED and self.pending is None


class Opened(msgspec.Struct, frozen=True):
    """A file that was opened.

    Attributes:
        stamp: Stamp of its lease.
        before_bytes: Length of the blocks before the last one.
        last: The last block, None if there is none. It has a pending stamp if it must be resealed.
        is_added: Whether the last block was added by the opening: it has no replicas yet.
    """

    inode: int
    stamp: Stamp
    before_bytes: int = 0
    last: BlockRecord | None = None
    is_added: bool = False


def known_volume(volumes: Mapping[VolumeId, Volume], volume: VolumeId) -> Volume:
    """Return a volume by its id; raise `StoreUnavailableError` if this process does not know it."""
    found = volumes.get(volume)
    if found is None:
        raise StoreUnavailableError(f"volume {volume} is not known to this process")
    return found


class naming:  # noqa: N801 - as `contextlib.suppress`
    """Name the file in an error about a block of it. No generator, for it is in each call of a writer."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreUnavailableError | MalformedRecordError):
            raise type(error)(f"{self._path}: {error}") from error
