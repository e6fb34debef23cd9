"""Volumes that are lost for good: no block names them as a member any more.

A volume is declared lost in one entry; from then on no new block and no copy goes to it. Then its members are
dropped, block by block, by compare-and-swap. A block without another good member keeps the lost one, with a
fault: nothing serves it, and the block can be named with its file.

A lost volume that comes back is never served. Its replicas are left over, and deleted; those of blocks
without a good replica are kept until an operator says that the volume was found.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Fault
from lockgate.storage_core.files.namespace.member_marks import DropMember
from lockgate.storage_core.files.namespace.queries import PAGE, path_of, records
from lockgate.storage_core.files.namespace.registered_volumes import DeclareLost
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, Member
from lockgate.storage_core.files.volumes.protocol import BlockId, VolumeId
from lockgate.storage_core.journal import Journal, Mutation, Refused


class LostBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block without a good replica.

    Attributes:
        block: The block.
        path: Path of its file; empty if it was deleted.
        length_bytes: Its length.
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
        without: Blocks of which no good replica is left.
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
            if not record.is_settled:
                done.unsealed += 1
                continue
            if set(record.members) - {volume}:
                done.members += 1
            else:
                done.without.append(
                    LostBlock(block=record.block, path=path, length_bytes=record.length_bytes)
                )
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
