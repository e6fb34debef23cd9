"""The comparison of a volume with the journal, behind check, report and repair. It changes nothing.

A page covers a range of blocks: the volume's replicas are listed, then its members are read, by short reads
of the journal. What differs is read once more, the volume before the journal, so a block that is changed or
removed meanwhile is left out. So are members of deleted files: a removal deletes replicas before rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.members import MarkReplica
from lockgate.storage_core.files.namespace.queries import (
    PAGE,
    current_records,
    files_below,
    path_of,
    records,
    undeleted,
)
from lockgate.storage_core.files.namespace.rows import Block, Member
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import (
    Epoch,
    Reading,
    Reads,
    read_epochs,
    survived,
)
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
        volume: The volume.
        block: The block; None if the volume as a whole does not answer.
        path: Path of the block's file; empty if it has none.
        problem: What is wrong.
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
        finding: What is wrong.
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
        volume: The volume.
        replica: What it has, None if it has no replica.
        history: The stamps of the journal.
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
            rows = undeleted(reading, reading.find(Block, [(block,) for block in alone]))
            paths = {BlockId(row.block): path_of(reading, row.file) for row in rows}
        for block, path in sorted(paths.items()):
            detail = f"no other volume has a good replica of its {alone[block].length_bytes} bytes"
            yield Finding(volume=volume, block=block, path=path, problem=Problem.LOST, detail=detail)


def read_block(journal: Journal, block: BlockId) -> BlockRecord | None:
    """Return a block, None if it was removed."""
    with journal.reading() as reading:
        row = reading.get(Block, block)
        return None if row is None else next(iter(records(reading, [row])))


class Comparison:
    """A comparison of volumes with the journal.

    Attributes:
        replicas: Number of replicas that were looked at.
        read_bytes: Number of bytes that were read.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        reads: Returns whether to read the bytes of a volume's sealed replica, and compare their checksums.
        bytes_per_s: Limit of what is read.
        first: Where the journal is read first, such as at an observer; by default at its primary, where what
            differs is always judged.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        reads: Callable[[BlockRecord, VolumeId], bool],
        bytes_per_s: float | None,
        first: Reads | None = None,
    ) -> None:
        check_limit(bytes_per_s)
        self.replicas = self.read_bytes = 0
        self._journal = journal
        self._first: Reads = first or journal
        self._volumes = volumes
        self._reads = reads
        self._bytes_per_s = bytes_per_s

    def of_volume(
        self, volume: VolumeId, after: BlockId | None = None, to: BlockId | None = None
    ) -> Iterator[tuple[BlockId | None, list[Difference]]]:
        """Yield the last block of each page, None for the last page, and what differs in it.

        Args:
            volume: The volume.
            after: Only blocks after this one.
            to: Only blocks up to this one.

        Raises:
            NotAppliedError: The volume does not answer.
            OutcomeUnknownError: As above.
        """
        there = known_volume(self._volumes, volume)
        while True:
            page = there.replicas(after, PAGE)
            last = page[-1].block if len(page) == PAGE and (to is None or page[-1].block < to) else None
            left = {one.block: one for one in page if to is None or one.block <= to}
            for found in members(self._first, volume, after, last or to):
                pairs = [(record, left.pop(record.block, None)) for record in found]
                yield found[-1].block, self._differences(volume, pairs)
            yield last, self._differences(volume, [(None, replica) for replica in left.values()])
            if last is None:
                return
            after = last

    def of_path(self, path: str) -> Iterator[list[Difference]]:
        """Yield what differs in the members of the files below a path; a volume without an answer is one.

        Raises:
            ObjectNotFoundError: The path does not exist.
        """
        with self._journal.reading() as reading:
            files = files_below(reading, path)
        away: set[VolumeId] = set()
        for file in files:
            with self._journal.reading() as reading:
                blocks = tuple(current_records(reading, reading.where(Block, {"file": file})))
            for record in blocks:
                for volume in (*record.members, *record.faults):
                    if volume in away:
                        continue
                    try:
                        replica = stat_replica(known_volume(self._volumes, volume), record.block)
                        yield self._differences(volume, [(record, replica)])
                    except (NotAppliedError, OutcomeUnknownError) as error:
                        away.add(volume)
                        yield [unreachable(volume, error)]

    def _differences(
        self, volume: VolumeId, pairs: Sequence[tuple[BlockRecord | None, Replica | None]]
    ) -> list[Difference]:
        there = known_volume(self._volumes, volume)
        history = read_history(self._first)
        read: dict[BlockId, tuple[BlockRecord, str]] = {}
        differing: list[BlockId] = []
        for record, replica in pairs:
            self.replicas += replica is not None
            is_wrong = judge(record, volume, replica, history) is not None
            if record is not None and not is_wrong:
                why = ""
                if record.is_settled and self._reads(record, volume):
                    why = damage(there, record, self._count)
                    read[record.block] = record, why
                is_wrong = bool(why) or volume in record.faults
            if is_wrong:
                differing.append((record or replica).block)  # type: ignore[union-attr] # one of them is there
        return self._again(volume, there, differing, read) if differing else []

    def _again(
        self,
        volume: VolumeId,
        there: Volume,
        blocks: Sequence[BlockId],
        read: Mapping[BlockId, tuple[BlockRecord, str]],
    ) -> list[Difference]:
        """Read blocks and their replicas once more, and return what is still wrong."""
        replicas = {block: stat_replica(there, block) for block in blocks}
        with self._journal.reading() as reading:
            rows = {row.block: row for row in reading.find(Block, [(block,) for block in blocks])}
            kept = {row.file for row in undeleted(reading, list(rows.values()))}
            now = {one.block: one for one in current_records(reading, list(rows.values()))}
            paths = {file: path_of(reading, file) for file in kept}
        history = read_history(self._journal)
        differences: list[Difference] = []
        for block in blocks:
            record = now.get(block)
            before, why = read.get(block, (None, None))
            if before is not None and before != record:
                continue  # it has changed meanwhile
            found = judge(record, volume, replicas[block], history)
            if found is not None and record is not None and not record.is_settled:
                # Its writer goes on: what all members have now is there after the journal was read.
                found = judge(record, volume, stat_replica(there, block), read_history(self._journal))
            one = _difference(record, volume, block, found, why)
            if one is None or (
                record is not None and one.finding.problem in FAULTS and rows[block].file not in kept
            ):
                continue  # nothing is wrong, or its file was deleted
            path = "" if record is None else paths.get(rows[block].file, "")
            differences.append(one._replace(finding=msgspec.structs.replace(one.finding, path=path)))
        return differences

    def _count(self, size: int) -> None:
        self.read_bytes += size
        if self._bytes_per_s is not None:
            self._journal.clock.sleep(size / self._bytes_per_s)


def _difference(
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

    Args:
        volume: Its volume.
        record: Its block.
        read: Called with the number of bytes after each read.

    Raises:
        NotAppliedError: The volume does not answer.
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
    """Refuse a limit that is not positive.

    Raises:
        InvalidInputError: It is not.
    """
    if bytes_per_s is not None and bytes_per_s <= 0:
        raise InvalidInputError(f"bytes_per_s={bytes_per_s}: give a number of bytes, more than 0")
