"""A block in the journal, and the journal's calls of a reseal and of a writer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from lockgate.storage_core.errors import StoreUnavailableError
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
        block: Its id.
        stamp: Its generation stamp at the last commit.
        members: The volumes that have it, without those with a fault.
        length_bytes: Its length at the last commit. The first flush of a block is one; later ones are not.
        state: `WRITING` or `SEALED`.
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
        inode: The file.
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


class Blocks(Protocol):
    """The blocks of one file in the journal, as the holder of its lease changes them.

    All changes raise `FencedError` once another holder has the lease, and `OutcomeUnknownError` where the
    journal gave no answer.
    """

    def end(self) -> Opened:
        """Return the end of the file, as it was opened."""

    def records(self) -> tuple[BlockRecord, ...]:
        """Return the file's blocks in order, as they are now."""

    def record(self, block: BlockId) -> BlockRecord:
        """Return a block as it is now."""

    def add(self, last: BlockRecord | None = None) -> BlockRecord:
        """Add an empty block at the end of the file: its stamp is the entry's, its members are chosen.

        After an error the next call asks for the same one.

        Args:
            last: The block before it, sealed: it is committed in the same entry.

        Raises:
            FencedError: The block before has a newer stamp.
        """

    def acknowledged(self, block: BlockId, stamp: Stamp) -> int:
        """Return how many bytes of a block all members have, as the last renewals say; 0 where not known."""

    def note_acknowledged(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        """Note that all members have these bytes; it is stored with the next renewal of the lease."""

    def stamp(self, block: BlockId, target_bytes: int | None) -> BlockRecord:
        """Begin a reseal: a pending stamp, and the target of a truncate unless one stands.

        Returns:
            The block with its pending stamp and the target that the reseal must use.
        """

    def commit(self, wanted: BlockRecord) -> BlockRecord:
        """Commit a reseal or a close: compare and swap on the newest stamp of the block.

        Args:
            wanted: Its stamp is the one that the block must have; its length, members and state are stored.

        Raises:
            FencedError: The block has a newer stamp.
        """

    def close(self, last: BlockRecord | None = None) -> None:
        """Close the file, whose blocks are sealed, and give its lease back; a repeated call changes nothing.

        Args:
            last: The last block, sealed: it is committed in the same entry. Without bytes it has no members.

        Raises:
            FencedError: The block has a newer stamp.
        """


def known_volume(volumes: Mapping[VolumeId, Volume], volume: VolumeId) -> Volume:
    """Return a volume by its id.

    Raises:
        StoreUnavailableError: This process does not know the volume.
    """
    found = volumes.get(volume)
    if found is None:
        raise StoreUnavailableError(f"volume {volume} is not known to this process")
    return found
