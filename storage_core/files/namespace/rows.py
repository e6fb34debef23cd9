"""The rows of the tree of appendable files."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.stamp import Stamp

DETACHED: Final = 0
"""Parent of what was deleted and is not removed yet; file of the blocks that a truncate has cut off."""
ROOT: Final = 1
"""The directory `/`. It has no row."""

_EPOCH_BITS: Final = 19
_SEQUENCE_BITS: Final = 44


def id_of(stamp: Stamp) -> int:
    """Return the id of what an entry makes. A restored journal repeats sequences: so the epoch is part of it.

    Of the epoch's number, which is random after a failover, the last bits are taken: ids have 63 bits.
    """
    return stamp.epoch % (1 << _EPOCH_BITS) << _SEQUENCE_BITS | stamp.sequence


class InodeKind(StrEnum):
    """Whether a name is that of a directory or of a file."""

    DIRECTORY = "directory"
    FILE = "file"


class FileState(StrEnum):
    """Whether a file has a writer, or one that ended without closing it."""

    OPEN = "open"
    CLOSED = "closed"


class Inode(Row, frozen=True):
    """A name in a directory. A directory is renamed or deleted by the change of one row."""

    TABLE: ClassVar = "inode"
    KEY: ClassVar = ("parent", "name")
    INDEXES: ClassVar = (("inode",),)
    SORTED_FROM: ClassVar = "name"

    parent: int
    name: str
    inode: int
    kind: InodeKind
    made_s: float


class File(Row, frozen=True):
    """A file, whatever its name: the number of its blocks, and their length at their last commits.

    Attributes:
        changed_s: When it was opened or closed last.
    """

    TABLE: ClassVar = "file"
    KEY: ClassVar = ("inode",)

    inode: int
    state: FileState
    blocks: int
    length_bytes: int
    changed_s: float


class Block(Row, frozen=True):
    """A block of a file; see `files.blocks.BlockRecord`.

    Attributes:
        file: Inode of its file; `DETACHED` once a truncate has cut it off.
        ordinal: Its place in the file, from 0.
    """

    TABLE: ClassVar = "file_block"
    KEY: ClassVar = ("block",)
    INDEXES: ClassVar = (("file", "ordinal"),)

    block: int
    file: int
    ordinal: int
    epoch: int
    sequence: int
    length_bytes: int
    state: ReplicaState
    pending_epoch: int | None = None
    pending_sequence: int | None = None
    target_bytes: int | None = None

    @property
    def stamp(self) -> Stamp:
        """Generation stamp at the last commit."""
        return Stamp(self.epoch, self.sequence)

    @property
    def pending(self) -> Stamp | None:
        """Stamp of a reseal that is not committed."""
        if self.pending_epoch is None or self.pending_sequence is None:
            return None
        return Stamp(self.pending_epoch, self.pending_sequence)

    @property
    def is_settled(self) -> bool:
        """Whether it is sealed; see `files.blocks.BlockRecord`."""
        return self.state is ReplicaState.SEALED and self.pending is None


class Member(Row, frozen=True):
    """A volume that has a replica of a block.

    Attributes:
        fault: Why its replica is not used; None while nothing is known to be wrong with it.
    """

    TABLE: ClassVar = "file_member"
    KEY: ClassVar = ("block", "volume")
    INDEXES: ClassVar = (("volume", "block"),)

    block: int
    volume: str
    fault: Fault | None = None


class VolumeState(StrEnum):
    """Whether blocks may be on a volume."""

    IN_USE = "in use"
    LEAVING = "leaving"
    """It gets no new blocks; copies of its blocks are made elsewhere."""
    LOST = "lost"
    """Its replicas are gone: nothing waits for them."""


class RegisteredVolume(Row, frozen=True):
    """A volume that blocks may name as a member.

    Attributes:
        url: Where it is reached; empty for the volume of a home directory.
    """

    TABLE: ClassVar = "volume"
    KEY: ClassVar = ("volume",)

    volume: str
    url: str
    added_s: float
    state: VolumeState = VolumeState.IN_USE


class ReportedVolume(Row, frozen=True):
    """The last whole report of a volume, and how far its bytes were read: soft state.

    It is outside entries, verification and checkpoints. A row confirms all members of the volume that have no
    fault. A virtual volume has a row of its own until the report of its volume ends.

    Attributes:
        volume: The volume; of a virtual volume followed by `#`, the last block before it, `-` and its last.
        reported_s: When the report ended, by the database's clock; None before the first one has.
        only_ones: Number of members with a problem whose block has no other member without a fault.
        accepted: Those of them that an operator has accepted as lost.
        read_to: Its last block whose bytes a check has read; 0: the next one begins with the first block.
    """

    TABLE: ClassVar = "volume_report"
    KEY: ClassVar = ("volume",)

    volume: str
    reported_s: float | None = None
    only_ones: int = 0
    accepted: int = 0
    read_to: int = 0


class WrittenLength(Row, frozen=True):
    """How many bytes of a file's last block, written at a stamp, all members had at a renewal: soft state."""

    TABLE: ClassVar = "written_length"
    KEY: ClassVar = ("inode",)

    inode: int
    block: int
    epoch: int
    sequence: int
    length_bytes: int

    @property
    def stamp(self) -> Stamp:
        """Stamp of the block."""
        return Stamp(self.epoch, self.sequence)


class DamagedReplica(Row, frozen=True):
    """A replica that a check has found to be damaged, for the next repair: soft state."""

    TABLE: ClassVar = "damaged_replica"
    KEY: ClassVar = ("volume", "block")

    volume: str
    block: int
