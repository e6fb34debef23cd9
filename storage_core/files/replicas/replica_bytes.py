"""The bytes of a replica at rest: read whole, their checksums compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lockgate.storage_core.errors import (
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
)
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.volumes.protocol import Volume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp

READ_BYTES: Final = 1024 * 1024
"""Bytes of each read of a verification or a copy."""


def damage(volume: Volume, record: BlockRecord, read: Callable[[int], None]) -> str:
    """Read a sealed replica whole; return what is wrong with it, empty if nothing is.

    A read that fails is tried once more if the volume answers another call.

    Args:
        volume: Its volume.
        record: Its block.
        read: Called with the number of bytes after each read.

    Raises:
        NotAppliedError: The volume does not answer.
    """
    for offset, size in pieces(record.length_bytes):
        try:
            data = _read(volume, record, offset, size)
        except (NotAppliedError, OutcomeUnknownError) as error:
            stat_replica(volume, record.block)
            return str(error)
        if len(data) < size:
            return f"{len(data)} of {size} bytes at {offset} can be read"
        read(size)
    return ""


def _read(volume: Volume, record: BlockRecord, offset: int, size: int) -> bytes:
    try:
        return volume.read(record.block, record.stamp, offset, size)
    except (NotAppliedError, OutcomeUnknownError):
        stat_replica(volume, record.block)
        return volume.read(record.block, record.stamp, offset, size)


def pieces(length: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the reads of a replica."""
    for offset in range(0, length, READ_BYTES):
        yield offset, min(READ_BYTES, length - offset)


def stat_replica(volume: Volume, block: BlockId) -> Replica | None:
    """Return a volume's replica, as `Volume.replicas` lists it: one that cannot be read has no stamp."""
    try:
        return volume.stat(block)
    except RecordVersionError:
        raise
    except (MalformedRecordError, ObjectNotFoundError):
        return Replica(block, Stamp(), ReplicaState.SUSPECT, 0, 0)
