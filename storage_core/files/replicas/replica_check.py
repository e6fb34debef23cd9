"""Check of replicas: what the volumes have, compared with the journal. It changes nothing.

Both are read in pages, in the order of blocks. What differs is read once more, the volume before the journal,
so a block that is changed or removed meanwhile is not reported. Members of blocks of deleted files are not
judged, because a removal deletes their replicas first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from lockgate.storage_core.errors import (
    InvalidInputError,
    NotAppliedError,
    OutcomeUnknownError,
    RecordVersionError,
)
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.namespace.queries import PAGE, files_below, path_of, records
from lockgate.storage_core.files.namespace.rows import Block, RegisteredVolume, id_of, sequence_of
from lockgate.storage_core.files.namespace.volume_urls import read_lost
from lockgate.storage_core.files.replicas.lost_volumes import drop_lost
from lockgate.storage_core.files.replicas.replica_bytes import damage, stat_replica
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import Epoch, read_epochs, survived
from lockgate.storage_core.stamp import Stamp


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


_OF_MEMBERS: Final = frozenset({Problem.LOST, Problem.STALE, Problem.CORRUPT})
"""Problems of the members of a block; they do not matter once its file was deleted."""


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


class History(NamedTuple):
    """The stamps of a journal: its newest one, and its epochs."""

    newest: Stamp
    epochs: list[Epoch]

    def has(self, stamp: Stamp) -> bool:
        """Return whether a stamp is of this history; (0, 0) is that of replicas without one."""
        return stamp == Stamp() or (stamp <= self.newest and survived(self.epochs, stamp))

    def has_made(self, block: BlockId) -> bool:
        """Return whether an entry of this history made a block."""
        stamps = (Stamp(epoch.epoch, sequence_of(block)) for epoch in self.epochs)
        return any(id_of(stamp) == block and self.has(stamp) for stamp in stamps)


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
    if record is None or (volume not in record.members and volume not in record.faults):
        return None if replica is None else (Problem.LEFT_OVER, f"no member; its stamp is {replica.stamp}")
    if replica is None:
        # Its writer creates the replicas after the entry that adds the block.
        is_new = record.state is ReplicaState.WRITING and record.length_bytes == 0
        return (
            None if is_new else (Problem.LOST, f"a member without a replica of {record.length_bytes} bytes")
        )
    return _judge_member(record, replica)


def _judge_member(record: BlockRecord, replica: Replica) -> tuple[Problem, str] | None:
    if replica.stamp < record.stamp and replica.stamp == Stamp():
        return Problem.CORRUPT, "its header or its log cannot be read"
    if replica.stamp < record.stamp:
        return Problem.STALE, f"its stamp {replica.stamp} is older than the block's, {record.stamp}"
    if record.is_settled and (replica.stamp, replica.state, replica.length_bytes) != (
        record.stamp,
        ReplicaState.SEALED,
        record.length_bytes,
    ):
        return Problem.CORRUPT, (
            f"it is {replica.state} with {replica.length_bytes} bytes at {replica.stamp}, the block sealed "
            f"with {record.length_bytes} at {record.stamp}"
        )
    least = record.length_bytes if record.target_bytes is None else record.target_bytes
    if replica.length_bytes < least:
        return (
            Problem.CORRUPT,
            f"it has {replica.length_bytes} bytes, the block had {least} at its last commit",
        )
    return None


class ReplicaCheck:
    """One check of all replicas, or of those of the files below a path.

    Attributes:
        replicas: Number of replicas that were looked at.
        verified_bytes: Number of bytes that were read.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        path: File or directory whose members are checked; empty: all blocks, and all replicas of the volumes.
        verify: Read the bytes of sealed replicas and compare their checksums.
        bytes_per_s: Limit of what is read.

    Raises:
        InvalidInputError: The limit is not positive.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        path: str = "",
        *,
        verify: bool = False,
        bytes_per_s: float | None = None,
    ) -> None:
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise InvalidInputError(f"bytes_per_s={bytes_per_s}: give a number of bytes, more than 0")
        self.replicas = 0
        self.verified_bytes = 0
        self._journal = journal
        self._volumes = volumes
        self._path = path
        self._verify = verify
        self._bytes_per_s = bytes_per_s
        self._unreachable: dict[VolumeId, str] = {}
        self._history = read_history(journal)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, by block, then the volumes that did not answer.

        Raises:
            PathNotFoundError: The path does not exist.
        """
        for record, volume, replica in self._of_path() if self._path else self._of_all():
            self.replicas += replica is not None
            block = (record or replica).block  # type: ignore[union-attr] # one of them is there
            if self._problem(record, volume, replica) and (found := self._again(block, volume)):
                yield found
        lost = read_lost(self._journal)
        for volume, why in sorted(self._unreachable.items()):
            if volume in lost:
                yield from self._without(volume)
            else:
                yield Finding(volume=volume, problem=Problem.UNREACHABLE, detail=why)

    def _without(self, volume: VolumeId) -> Iterator[Finding]:
        """Yield the blocks that a lost volume was the last good member of."""
        detail = "the volume was declared lost, and no other member has a good replica"
        for one in drop_lost(self._journal, volume, dry_run=True).without:
            if one.path:
                yield Finding(
                    volume=volume, block=one.block, path=one.path, problem=Problem.LOST, detail=detail
                )

    def _of_path(self) -> Iterator[tuple[BlockRecord | None, VolumeId, Replica | None]]:
        with self._journal.reading() as reading:
            files = files_below(reading, self._path)
        for file in files:
            with self._journal.reading() as reading:
                rows = reading.where(Block, {"file": file})
                blocks = tuple(records(reading, rows))
            for record in blocks:
                for volume in (*record.members, *record.faults):
                    if volume not in self._unreachable:
                        replica = self._stat(volume, record.block)
                        if volume not in self._unreachable:
                            yield record, volume, replica

    def _of_all(self) -> Iterator[tuple[BlockRecord | None, VolumeId, Replica | None]]:
        for volume in known_volumes(self._journal, self._volumes):
            yield from self._of_volume(volume)

    def _of_volume(self, volume: VolumeId) -> Iterator[tuple[BlockRecord | None, VolumeId, Replica | None]]:
        """Merge the journal's blocks with the replicas of a volume; both are in the order of blocks."""
        blocks, replicas = self._blocks(), self._replicas(volume)
        record, replica = next(blocks, None), next(replicas, None)
        while (record or replica) and volume not in self._unreachable:
            at = min(one.block for one in (record, replica) if one is not None)
            here = record if record is not None and record.block == at else None
            there = replica if replica is not None and replica.block == at else None
            yield here, volume, there
            record = record if here is None else next(blocks, None)
            replica = replica if there is None else next(replicas, None)

    def _blocks(self) -> Iterator[BlockRecord]:
        after: tuple[int] | None = None
        while True:
            with self._journal.reading() as reading:
                page = tuple(records(reading, reading.where(Block, {}, limit=PAGE, after=after)))
            yield from page
            if len(page) < PAGE:
                return
            after = (page[-1].block,)

    def _replicas(self, volume: VolumeId) -> Iterator[Replica]:
        after: BlockId | None = None
        while True:
            try:
                page = known_volume(self._volumes, volume).replicas(after, PAGE)
            except (NotAppliedError, OutcomeUnknownError) as error:
                self._unreachable[volume] = str(error)
                return
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].block

    def left_over(self, block: BlockId, volume: VolumeId) -> Replica | None:
        """Return a replica that is left over now, and that its block does not need.

        None if it is gone or a member's, if its stamp is unknown or unexplained, or if its block has no good
        member, or one without a good replica: then its bytes may be the only ones.
        """
        replica = self._stat(volume, block)
        with self._journal.reading() as reading:
            row = reading.get(Block, block)
            record = None if row is None else next(iter(records(reading, [row])))
        self._history = read_history(self._journal)
        found = judge(record, volume, replica, self._history)
        if replica is None or replica.stamp == Stamp() or found is None or found[0] is not Problem.LEFT_OVER:
            return None
        return replica if record is None or self._has_good_members(record) else None

    def is_whole(self, block: BlockId) -> bool:
        """Return whether a block has good replicas on all its members, or was removed."""
        with self._journal.reading() as reading:
            row = reading.get(Block, block)
            record = None if row is None else next(iter(records(reading, [row])))
        self._history = read_history(self._journal)
        if record is None:
            return self._history.has_made(block)  # a restored journal may lack the block
        return not record.faults and self._has_good_members(record)

    def _has_good_members(self, record: BlockRecord) -> bool:
        """Return whether a block has members without a fault, and all of them have good replicas."""
        for member in record.members:
            there = self._stat(member, record.block)
            if there is None or member in self._unreachable or judge(record, member, there, self._history):
                return False
        return bool(record.members)

    def _again(self, block: BlockId, volume: VolumeId) -> Finding | None:
        """Read a block and its replica once more, and return what is still wrong."""
        replica = self._stat(volume, block)
        with self._journal.reading() as reading:
            row = reading.get(Block, block)
            record = None if row is None else next(iter(records(reading, [row])))
            path = "" if row is None else path_of(reading, row.file)
        self._history = read_history(self._journal)
        problem = None if volume in self._unreachable else self._problem(record, volume, replica)
        if problem is None or (row is not None and not path and problem[0] in _OF_MEMBERS):
            return None  # nothing is wrong, or its file was deleted: a removal deletes replicas before rows
        return Finding(volume=volume, block=block, path=path, problem=problem[0], detail=problem[1])

    def _problem(
        self, record: BlockRecord | None, volume: VolumeId, replica: Replica | None
    ) -> tuple[Problem, str] | None:
        found = judge(record, volume, replica, self._history)
        if found is None and record is not None and (fault := record.faults.get(volume)):
            return Problem(fault), f"it was marked as {fault} and is not served; a copy is to replace it"
        if found is None and self._verify and record is not None and replica is not None:
            return self._read(record, volume)
        return found

    def _read(self, record: BlockRecord, volume: VolumeId) -> tuple[Problem, str] | None:
        """Read a sealed replica, and compare its checksums."""
        if not record.is_settled:
            return None
        try:
            why = damage(known_volume(self._volumes, volume), record, self._count)
        except RecordVersionError:
            raise
        except (NotAppliedError, OutcomeUnknownError) as error:
            self._unreachable[volume] = str(error)
            return None
        return (Problem.CORRUPT, why) if why else None

    def _count(self, size: int) -> None:
        self.verified_bytes += size
        if self._bytes_per_s is not None:
            self._journal.clock.sleep(size / self._bytes_per_s)

    def _stat(self, volume: VolumeId, block: BlockId) -> Replica | None:
        try:
            return stat_replica(known_volume(self._volumes, volume), block)
        except RecordVersionError:
            raise
        except (NotAppliedError, OutcomeUnknownError) as error:
            self._unreachable[volume] = str(error)
            return None


def read_history(journal: Journal) -> History:
    """Return the stamps of a journal."""
    with journal.reading() as reading:
        return History(reading.status().stamp, read_epochs(reading))


def usable_volumes(journal: Journal, volumes: Mapping[VolumeId, Volume]) -> list[VolumeId]:
    """Return the volumes that the journal or this process knows, without lost ones, by id."""
    lost = read_lost(journal)
    return [volume for volume in known_volumes(journal, volumes) if volume not in lost]


def known_volumes(journal: Journal, volumes: Mapping[VolumeId, Volume]) -> list[VolumeId]:
    """Return the volumes that the journal or this process knows, by id."""
    with journal.reading() as reading:
        registered = [VolumeId(row.volume) for row in reading.where(RegisteredVolume, {})]
    return sorted({*registered, *volumes})


class VolumeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A volume.

    Attributes:
        volume: Its id.
        url: Where its server is reached; empty for a volume of a home directory.
        used_bytes: What its replicas take; None if it does not answer.
        free_bytes: What more can be written; None if it does not answer.
        lost_s: When it was declared lost; None if it is in use.
        added_s: When it was registered: by its server, or as a member of a block; None if it is not.
        why_not: Why it does not answer; empty if it does.
    """

    volume: VolumeId
    url: str = ""
    used_bytes: int | None = None
    free_bytes: int | None = None
    added_s: float | None = None
    lost_s: float | None = None
    why_not: str = ""


def volume_statuses(journal: Journal, volumes: Mapping[VolumeId, Volume]) -> tuple[VolumeStatus, ...]:
    """Return the volumes that the journal or this process knows, by id."""
    with journal.reading() as reading:
        rows = {VolumeId(row.volume): row for row in reading.where(RegisteredVolume, {})}
    found: list[VolumeStatus] = []
    for volume in sorted({*rows, *volumes}):
        row = rows.get(volume)
        status = VolumeStatus(volume=volume)
        if row is not None:
            status = VolumeStatus(volume=volume, url=row.url, added_s=row.added_s, lost_s=row.lost_s)
        try:
            usage = known_volume(volumes, volume).usage()
        except (NotAppliedError, OutcomeUnknownError) as error:
            found.append(msgspec.structs.replace(status, why_not=str(error)))
        else:
            used, free = usage.used_bytes, usage.free_bytes
            found.append(msgspec.structs.replace(status, used_bytes=used, free_bytes=free))
    return tuple(found)
