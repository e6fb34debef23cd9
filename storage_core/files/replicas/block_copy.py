"""One copy of a sealed block on another volume: read, sealed, read back.

The copy is not a member before an entry names it. A process that dies before the entry leaves a replica that
no block names: it is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    JournalUnavailableError,
    MalformedRecordError,
    NotAppliedError,
    OutcomeUnknownError,
    SafeModeError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.namespace.member_marks import AddMember
from lockgate.storage_core.files.namespace.queries import records
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.replicas.comparison import check_limit, pieces, stat_replica
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode

T = TypeVar("T")

STOPS: Final = (JournalUnavailableError, SafeModeError, StateLostError)
"""Errors that all further copies would meet, too."""

FAILS: Final = (NotAppliedError, OutcomeUnknownError, FencedError)
"""Errors of one copy."""


class BlockCopier:
    """Copies of blocks.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        within_s: Limit for one copy: not longer than the time between the passes of `delete_left_over`.
        bytes_per_s: Limit of what is copied. A block that would take more than half of `within_s` is copied
            faster.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        *,
        within_s: float,
        bytes_per_s: float | None = None,
    ) -> None:
        check_limit(bytes_per_s)
        self._journal = journal
        self._volumes = volumes
        self._within_s = within_s
        self._bytes_per_s = bytes_per_s

    def copy(
        self, record: BlockRecord, volume: VolumeId, *, instead_of: VolumeId | None, most: int, is_move: bool
    ) -> None:
        """Copy a sealed block to a volume, and make it a member.

        A member's replica with a fault that is on the volume is set aside.

        Args:
            record: The block.
            volume: The volume.
            instead_of: Member that it replaces; see `AddMember`.
            most: Number of members without a fault after it, at most.
            is_move: Whether the replaced member has a good replica, too.

        Raises:
            SafeModeError: The journal is in safe mode.
            ConflictError: The block has changed, the volume has another replica, or the copy took too long.
            StoreUnavailableError: No good member could be read, or the copy has other bytes.
        """
        refuse_in_safe_mode(self._journal, "a copy of a block")
        with self._journal.reading() as reading:
            until_s = reading.now_s() + self._within_s
        to = known_volume(self._volumes, volume)
        if stat_replica(to, record.block) is not None:
            if volume not in record.faults:
                raise ConflictError(
                    f"it has another replica of block {record.block}, which must be deleted first"
                )
            if self.is_changed(record):  # another process may have made a good copy there
                raise ConflictError(f"block {record.block} has changed; nothing was set aside")
            for offset, size in pieces(record.length_bytes):
                self._read(record, offset, size, without=volume)  # before good parts of it are set aside
            _at("quarantine", lambda: to.quarantine(record.block, record.stamp))
        _at("create", lambda: to.create(record.block, record.stamp))
        crc = self._fill(record, to)
        _at(
            "finish",
            lambda: to.finish(record.block, record.stamp, record.length_bytes, ReplicaState.SEALED),
        )
        back = 0
        for offset, size in pieces(record.length_bytes):
            back = crc32c(to.read(record.block, record.stamp, offset, size), back)
        if back != crc:
            raise StoreUnavailableError(f"the copy of block {record.block} has other bytes; it is not used")
        entry = AddMember(
            block=record.block,
            volume=volume,
            generation=record.stamp,
            instead_of=instead_of,
            most=most,
            until_s=until_s,
            is_move=is_move,
        )
        _at("entry", lambda: self._journal.apply(entry))

    def is_changed(self, record: BlockRecord) -> bool:
        """Return whether another process has changed or removed a block since it was read."""
        with self._journal.reading() as reading:
            row = reading.get(Block, record.block)
            return row is None or list(records(reading, [row])) != [record]

    def _fill(self, record: BlockRecord, to: Volume) -> int:
        """Append the bytes of a good member to a copy, and return their checksum."""
        crc = 0
        for offset, size in pieces(record.length_bytes):
            data = self._read(record, offset, size, without=None)
            crc = crc32c(data, crc)
            _at("append", partial(to.append, record.block, record.stamp, offset, data))
            if self._bytes_per_s is not None:
                pace = max(self._bytes_per_s, 2 * record.length_bytes / self._within_s)
                self._journal.clock.sleep(size / pace)
        return crc

    def _read(self, record: BlockRecord, offset: int, size: int, *, without: VolumeId | None) -> bytes:
        """Return bytes of a block, from one good member or the other.

        A damaged member has good parts, too: a volume checks what it reads. So a piece that no good member
        has is read in halves, also from those.

        Args:
            record: The block.
            offset: Where the piece begins.
            size: Its length.
            without: Member that is not asked.

        Raises:
            StoreUnavailableError: No member serves it.
        """
        damaged = [volume for volume, fault in record.faults.items() if fault is Fault.CORRUPT]
        said = "it has none"
        is_damaged = False
        for member in (*record.members, *damaged):
            if member == without:
                continue
            try:
                data = known_volume(self._volumes, member).read(record.block, record.stamp, offset, size)
            except (NotAppliedError, OutcomeUnknownError) as error:
                is_damaged = is_damaged or isinstance(error, MalformedRecordError)
                said = str(error) if member in record.members else said
                continue
            if len(data) == size:
                return data
        if is_damaged and size > 1:
            half = size // 2
            first = self._read(record, offset, half, without=without)
            return first + self._read(record, offset + half, size - half, without=without)
        raise StoreUnavailableError(f"no good member of block {record.block} serves byte {offset}: {said}")


def _at(point: str, call: Callable[[], T]) -> T:
    """Make a call between two failpoints."""
    FAILPOINTS.hit(f"copy.{point}.before")
    result = call()
    FAILPOINTS.hit(f"copy.{point}.after")
    return result
