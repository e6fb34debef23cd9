"""Volumes that are lost for good: no block names them as a member any more.

A volume is declared lost in one entry; from then on no new block and no copy goes to it. Then its members are
dropped, block by block, by compare-and-swap. A block without another good member keeps the lost one, with a
fault: nothing serves it, and the block can be named with its file.

A lost volume that comes back is never served. Its replicas are left over, and deleted; those of blocks
without a good replica are kept until an operator says that the volume was found. Then it is their member
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault, known_volume
from lockgate.storage_core.files.namespace.member_marks import AddMember, DropMember
from lockgate.storage_core.files.namespace.queries import PAGE, path_of, records
from lockgate.storage_core.files.namespace.registered_volumes import DeclareLost
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, Member
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.journal import Journal, Mutation, Refused


class LostBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block without a good replica.

    Attributes:
        block: The block.
        path: Path of its file; empty if it was deleted.
        length_bytes: Its length; of one that is being written at its last commit.
    """

    block: BlockId
    path: str
    length_bytes: int


class LostVolume(msgspec.Struct, kw_only=True):
    """What the loss of a volume means.

    Attributes:
        volume: The volume.
        members: Blocks that it is a member of, and that another good member has.
        dropped: Those of them that it was dropped from.
        unsealed: Blocks that are being written; the recovery or the close of their files drops it.
        without: Blocks of which no good replica is left, also of those that are being written.
    """

    volume: VolumeId
    members: int = 0
    dropped: int = 0
    unsealed: int = 0
    without: list[LostBlock] = msgspec.field(default_factory=list)


def declare_lost(journal: Journal, volume: VolumeId, *, is_lost: bool) -> None:
    """Declare a volume lost, or found.

    Raises:
        ObjectNotFoundError: The volume is not registered.
    """
    journal.apply(DeclareLost(volume=volume, is_lost=is_lost))


def drop_lost(journal: Journal, volume: VolumeId, *, dry_run: bool = False) -> LostVolume:
    """Drop a lost volume from the blocks; a call that was stopped is completed by the next one.

    Args:
        journal: The journal of the files.
        volume: The volume, declared lost unless it is a dry run.
        dry_run: Only count.
    """
    done = LostVolume(volume=volume)
    for page in _pages(journal, volume):
        drops: list[DropMember] = []
        for record, path in page:
            lost = LostBlock(block=record.block, path=path, length_bytes=record.length_bytes)
            if not record.is_settled:
                done.unsealed += 1
                if not set(record.members) - {volume}:
                    done.without.append(lost)
                continue
            if set(record.members) - {volume}:
                done.members += 1
            else:
                done.without.append(lost)
                if record.faults.get(volume) is Fault.LOST:
                    continue  # it was marked by an earlier call
            drops.append(DropMember(block=record.block, volume=volume, generation=record.stamp))
        if drops and not dry_run:
            FAILPOINTS.hit("lost.drop.before")
            outcomes = journal.write([Mutation(op=drop) for drop in drops])
            FAILPOINTS.hit("lost.drop.after")
            for outcome in outcomes:
                if not isinstance(outcome, Refused):
                    done.dropped += bool(outcome.result)
                elif not isinstance(
                    outcome.error, ConflictError
                ):  # else it has changed: the next call sees it
                    raise outcome.error
    return done


def take_back(
    journal: Journal, volumes: Mapping[VolumeId, Volume], volume: VolumeId, *, within_s: float
) -> int:
    """Make a found volume a member again of the blocks without a good member of which it has the replica.

    Its replica is the block's if it is sealed at the block's stamp: each change of a block takes a new one.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        volume: The volume, which is not lost any more.
        within_s: As for `AddMember.until_s`: the time between the passes of `delete_left_over`.

    Returns:
        The number of these blocks.

    Raises:
        NotAppliedError: The volume does not answer; the next call takes the rest back.
    """
    taken = 0
    after: BlockId | None = None
    while True:
        with journal.reading() as reading:
            until_s = reading.now_s() + within_s
        page = known_volume(volumes, volume).replicas(after, PAGE)
        with journal.reading() as reading:
            rows = reading.find(Block, [(one.block,) for one in page])
            found = {
                one.block: one for one in records(reading, [row for row in rows if row.file != DETACHED])
            }
        adds = [
            AddMember(
                block=replica.block,
                volume=volume,
                generation=replica.stamp,
                instead_of=None,
                most=1,
                until_s=until_s,
            )
            for replica in page
            if replica.block in found and _is_the_only_one(found[replica.block], volume, replica)
        ]
        FAILPOINTS.hit("found.take-back.before")
        for outcome in journal.write([Mutation(op=add) for add in adds]) if adds else ():
            if not isinstance(outcome, Refused):
                taken += 1
            elif not isinstance(outcome.error, ConflictError):
                raise outcome.error
        FAILPOINTS.hit("found.take-back.after")
        if len(page) < PAGE:
            return taken
        after = page[-1].block


def _is_the_only_one(record: BlockRecord, volume: VolumeId, replica: Replica) -> bool:
    """Return whether a replica that is left over is the block's, and the block has no good member."""
    is_whole = (replica.stamp, replica.state, replica.length_bytes) == (
        record.stamp,
        ReplicaState.SEALED,
        record.length_bytes,
    )
    return record.is_settled and not record.members and volume not in record.faults and is_whole


def _pages(journal: Journal, volume: VolumeId) -> Iterator[list[tuple[BlockRecord, str]]]:
    at = 0
    while True:
        with journal.reading() as reading:
            members = reading.where(Member, {"volume": volume}, limit=PAGE, after=(at, volume))
            rows = {row.block: row for row in reading.find(Block, [(one.block,) for one in members])}
            found = records(reading, [row for row in rows.values() if row.file != DETACHED])
            page = [
                (
                    one,
                    "" if set(one.members) - {volume} else path_of(reading, rows[one.block].file),
                )
                for one in found
            ]
        yield page
        if len(members) < PAGE:
            return
        at = members[-1].block
