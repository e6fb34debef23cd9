"""What a volume does with replicas. Each call names the block and the stamp; a fence refuses older stamps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NewType, Protocol

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp

VolumeId = NewType("VolumeId", str)
"""Persisted in the volume's directory."""

UNLIMITED_BYTES: Final = 2**60
"""Free space of a volume without a limit of its own."""


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Space of a volume.

    Attributes:
        used_bytes: What its replicas take.
        free_bytes: What more can be written; `UNLIMITED_BYTES` if there is no limit.
    """

    used_bytes: int
    free_bytes: int


class Volume(Protocol):
    """A place of replicas, which any number of processes and machines use at once.

    Calls that change a replica raise `FencedError` for a stamp that is older than the replica's. All calls
    raise `StoreUnavailableError` where the volume cannot be reached. A repeated call has the same answer.

    Attributes:
        id: Its id.
    """

    id: VolumeId

    def claim(self, journal: str) -> None:
        """Give the volume to a journal; another one numbers its blocks alike.

        Raises:
            ConflictError: The volume is another journal's.
        """

    def answers(self) -> bool:
        """Return whether the volume can be reached now, and is the one that was opened."""

    def close(self) -> None:
        """Close what is open; bytes that were not flushed may be lost."""

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        """Create an empty replica; one that stands at this stamp is returned."""

    def store(self, block: BlockId, stamp: Stamp, pieces: Iterable[bytes]) -> None:
        """Make a whole sealed replica of the pieces.

        A directory puts it in the place of one that is damaged or has an older stamp, at once: until then
        that one stays. A call that was stopped leaves nothing there. A bucket refuses a damaged one.

        Raises:
            FencedError: The replica has a newer stamp.
        """

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Append bytes at the end of a replica; bytes that stand already are compared.

        Returns:
            The length of the replica.

        Raises:
            InvalidInputError: The offset leaves a gap, or other bytes stand there.
            ConflictError: The replica takes no appends.
        """

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Make all received bytes durable, and return their number."""

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        """Note that all members of the block have these bytes durably.

        A hint for recovery and for readers: it is not made durable, and an error of the disk is only logged.
        """

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return durable bytes of the replica at a stamp; fewer than `size` only at their end.

        A replica that has been fenced since may still be read at its older stamp.

        Raises:
            StaleReplicaError: The replica has nothing at this stamp.
            MalformedRecordError: The bytes are damaged; the message names block and volume.
        """

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""

    def fence(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Replica:
        """Refuse older stamps from here on, and return the replica once that is durable.

        The replica takes appends at this stamp then, also one that was sealed.

        Args:
            block: Its block.
            stamp: The new stamp.
            committed: The block's stamp at its last commit in the journal.

        Raises:
            ObjectNotFoundError: There is no replica.
            StaleReplicaError: The replica is older than `committed`: it missed a reseal.
        """

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        """Cut a replica at the stamp of its fence; a shorter one is refused.

        Raises:
            ConflictError: The replica has another stamp, or is shorter.
        """

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        """Seal a replica or open it to appends, durably with its bytes.

        Raises:
            ConflictError: The replica has another stamp or length.
        """

    def delete(self, block: BlockId, stamp: Stamp, token: str | None = None) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one.

        Args:
            block: Its block.
            stamp: The newest stamp that it may have.
            token: Its `Replica.token`, if a copy that has come into its place is to stay.
        """

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks: at most `limit`; fewer only at the end.

        The bytes of sealed replicas are not read. A replica that cannot be read at all is listed at the stamp
        `(0, 0)`, as damaged and empty.

        Args:
            after: Last block of the page before; None for the first page.
            limit: Number of replicas, at least 1.

        Raises:
            InvalidInputError: `limit` is less than 1.
            RecordVersionError: A newer program wrote a replica; nothing is listed.
        """

    def usage(self) -> Usage:
        """Return the used and the free space."""


def is_url(volume: str) -> bool:
    """Return whether the id of a volume is the URL at which it is, so that it needs no registration."""
    return "://" in volume


def check_limit(limit: int) -> None:
    """Refuse a page of no replicas.

    Raises:
        InvalidInputError: `limit` is less than 1.
    """
    if limit < 1:
        raise InvalidInputError(f"limit={limit}: give the number of replicas of a page, at least 1")
