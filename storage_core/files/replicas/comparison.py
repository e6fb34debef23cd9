"""What is wrong with a replica, judged by its block in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.errors import (
    InvalidInputError,
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
)
from lockgate.storage_core.files.blocks import BlockRecord, Fault
from lockgate.storage_core.files.namespace.members import MarkReplica
from lockgate.storage_core.files.namespace.queries import PAGE, current_records, paths_of
from lockgate.storage_core.files.namespace.queries import block as block_of
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, Member
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import Epoch, Reading, Reads, read_epochs, survived
from lockgate.storage_core.stamp import Stamp

READ_BYTES: Final = 1024 * 1024
"""Bytes of each read of a check or a copy."""


class Problem(StrEnum):
    """What is wrong with a replica."""

    LOST = "lost"
    """A member has no replica."""
    STALE = "stale"
    """A member's replica has an older stamp; it is not served."""
    CORRUPT = "corrupt"
    """A member's replica has another length or stamp than the block, or bytes whose checksums do not hold."""
    LEFT_OVER = "left over"
    """The volume is no member of the block, or the block was removed; the replica is not served."""
    UNEXPLAINED = "unexplained"
    """Its stamp is not of this journal's history, as after a restore: an operator must decide."""
    UNREACHABLE = "unreachable"
    """The volume does not answer."""


FAULTS: Final = {Problem(fault): fault for fault in Fault}
"""The problems of members, which a repair marks; they do not matter once a file was deleted."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A replica or a volume with a problem.

    Attributes:
        block: The block; None if the volume as a whole does not answer.
        path: Path of the block's file; empty if it has none.
        detail: What was expected and what was found.
    """

    volume: VolumeId
    problem: Problem
    detail: str
    block: BlockId | None = None
    path: str = ""

    def __str__(self) -> str:
        """Return the finding as a line."""
        block = "" if self.block is None else f" block {self.block}"
        return f"{self.problem}: volume {self.volume}{block} {self.path}: {self.detail}"


class Difference(NamedTuple):
    """A finding, and what a repair is to do about it.

    Attributes:
        mark: Entry that changes the journal's fault of the member; None if it stays as it is.
        is_to_be_named: Whether a repair cannot mend it, but an operator or the block's writer.
        is_only_one: Whether the block is sealed, and has no other member without a fault.
        was_read: Whether the bytes were read, and are damaged.
    """

    finding: Finding
    mark: MarkReplica | None = None
    is_to_be_named: bool = True
    is_only_one: bool = False
    was_read: bool = False


class History(NamedTuple):
    """The stamps of a journal: its newest one, and its epochs."""

    newest: Stamp
    epochs: list[Epoch]

    def has(self, stamp: Stamp) -> bool:
        """Return whether a stamp is of this history; (0, 0) is that of replicas without one."""
        return stamp == Stamp() or (stamp <= self.newest and survived(self.epochs, stamp))


def read_history(reads: Reads) -> History:
    """Return the stamps of a journal."""
    return reads.read(lambda reading: History(reading.status().stamp, read_epochs(reading)))


def judge(
    record: BlockRecord | None, volume: VolumeId, replica: Replica | None, history: History
) -> tuple[Problem, str] | None:
    """Return what is wrong with a volume's replica of a block, and a description; None if nothing is.

    Args:
        record: The block in the journal, None if it has none.
        replica: What it has, None if it has no replica.
    """
    if replica is not None and not history.has(replica.stamp):
        return Problem.UNEXPLAINED, f"its stamp {replica.stamp} is not of this journal's history"
    if record is not None and (volume in record.members or volume in record.faults):
        return _judge_member(record, replica)
    return None if replica is None else (Problem.LEFT_OVER, f"no member; its stamp is {replica.stamp}")


def _judge_member(record: BlockRecord, replica: Replica | None) -> tuple[Problem, str] | None:
    found: tuple[Problem, str] | None = None
    known = max(record.length_bytes, record.acknowledged_bytes)
    least = known if record.target_bytes is None else record.target_bytes
    if replica is None:
        # Its writer creates the replicas after the entry that adds the block.
        if record.state is ReplicaState.SEALED or record.length_bytes:
            found = Problem.LOST, f"a member without a replica of {record.length_bytes} bytes"
    elif replica.damage:
        found = Problem.CORRUPT, replica.damage
    elif replica.stamp < record.stamp:
        found = Problem.STALE, f"its stamp {replica.stamp} is older than the block's, {record.stamp}"
    elif replica.length_bytes < least:
        found = Problem.CORRUPT, f"it has {replica.length_bytes} bytes, and all members had {least}"
    elif record.is_settled:
        sealed = (record.stamp, ReplicaState.SEALED, record.length_bytes)
        if (replica.stamp, replica.state, replica.length_bytes) != sealed:
            detail = f"it is {replica.state} with {replica.length_bytes} bytes at {replica.stamp}"
            detail += f", the block sealed with {record.length_bytes} at {record.stamp}"
            found = Problem.CORRUPT, detail
    return found


def members(
    reads: Reads, volume: VolumeId, after: BlockId | None = None, last: BlockId | None = None
) -> Iterator[list[BlockRecord]]:
    """Yield the blocks that a volume is a member of, after one and up to another, a page at a time."""
    at = after or 0

    def page(reading: Reading) -> tuple[list[int], list[BlockRecord]]:
        rows = reading.where(Member, {"volume": volume}, limit=PAGE, after=(at, volume))
        within = [one.block for one in rows if last is None or one.block <= last]
        blocks = reading.find(Block, [(block,) for block in within])
        return within, list(current_records(reading, sorted(blocks, key=lambda row: row.block)))

    while True:
        within, found = reads.read(page)
        if found:
            yield found
        if len(within) < PAGE:
            return
        at = within[-1]


def only_replicas(journal: Journal, volume: VolumeId) -> Iterator[Finding]:
    """Yield the blocks of files of which no other volume than a member has a good replica."""
    for found in members(journal, volume):
        alone = {one.block: one for one in found if not set(one.members) - {volume}}
        with journal.reading() as reading:
            files = {row.block: row.file for row in reading.find(Block, [(block,) for block in alone])}
            paths = paths_of(reading, files.values())
        for block, record in alone.items():
            if (path := paths.get(files.get(block, DETACHED))) is not None:
                detail = f"no other volume has a good replica of its {record.length_bytes} bytes"
                yield Finding(volume=volume, block=block, path=path, problem=Problem.LOST, detail=detail)


def read_block(journal: Journal, block: BlockId) -> BlockRecord | None:
    """Return a block, None if it was removed."""
    with journal.reading() as reading:
        return block_of(reading, block)


def difference(
    record: BlockRecord | None,
    volume: VolumeId,
    block: BlockId,
    found: tuple[Problem, str] | None,
    damaged: str | None,
) -> Difference | None:
    """Return what `judge` has found, or what is wrong with the bytes: None if they were not read."""
    before = None if record is None else record.faults.get(volume)
    if found is None and damaged:
        found = Problem.CORRUPT, damaged
    fault = None if found is None else FAULTS.get(found[0])
    if found is None and before is not None:
        found = Problem(before), f"it was marked as {before} and is not served; a copy is to replace it"
        # Without news of its bytes a corrupt one stays so.
        fault = before if before is Fault.CORRUPT and damaged is None else None
    if found is None:
        return None
    finding = Finding(volume=volume, block=block, problem=found[0], detail=found[1])
    if record is None or not record.is_settled or found[0] not in FAULTS:
        return Difference(finding, is_to_be_named=found[0] is not Problem.LEFT_OVER)
    is_only_one = fault is not None and set(record.members) <= {volume}
    mark = None
    if fault is not before and not is_only_one:
        mark = MarkReplica(block=block, volume=volume, generation=record.stamp, fault=fault)
    return Difference(finding, mark, is_only_one, is_only_one, bool(damaged))


def unreachable(volume: VolumeId, error: Exception) -> Difference:
    """Return the difference of a volume that does not answer."""
    return Difference(Finding(volume=volume, problem=Problem.UNREACHABLE, detail=str(error)))


def damage(volume: Volume, record: BlockRecord, read: Callable[[int], None]) -> str:
    """Read a sealed replica whole; return what is wrong with it, empty if nothing is.

    `read` is called with the number of bytes after each read. Raises if the volume does not answer.
    """
    for offset, size in pieces(record.length_bytes):
        for is_again in (False, True):
            try:
                data = volume.read(record.block, record.stamp, offset, size)
                break
            except (NotAppliedError, OutcomeUnknownError) as error:
                stat_replica(volume, record.block)  # raises if the volume does not answer
                if is_again or isinstance(error, MalformedRecordError):
                    return str(error)
        if len(data) < size:
            return f"{len(data)} of {size} bytes at {offset} can be read"
        read(size)
    return ""


def pieces(length: int) -> Iterable[tuple[int, int]]:
    """Return offset and size of the reads of a replica."""
    return ((offset, min(READ_BYTES, length - offset)) for offset in range(0, length, READ_BYTES))


def stat_replica(volume: Volume, block: BlockId) -> Replica | None:
    """Return a volume's replica, as `Volume.replicas` lists it: one that cannot be read has no stamp."""
    try:
        return volume.stat(block)
    except RecordVersionError:
        raise
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return Replica(block, Stamp(), ReplicaState.WRITING, 0, 0, damage=str(error))


def check_limit(bytes_per_s: float | None) -> None:
    """Raise `InvalidInputError` if a limit is not positive."""
    if bytes_per_s is not None and bytes_per_s <= 0:
        raise InvalidInputError(f"bytes_per_s={bytes_per_s}: give a number of bytes, more than 0")
