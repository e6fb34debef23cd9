"""Removal of a volume: its blocks move to others, or it is lost and they do without it.

It gets no new blocks from the first entry on. The members are dropped by bounded entries. A block that has
no other good replica keeps a lost volume, marked, so that it can be named with its file. A removal that was
stopped is completed by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.namespace.member_marks import DropMembers
from lockgate.storage_core.files.namespace.registered_volumes import ForgetVolume, LeaveVolume
from lockgate.storage_core.files.namespace.rows import Member
from lockgate.storage_core.files.replicas.comparison import Comparison, OnlyMember
from lockgate.storage_core.files.replicas.re_replication import ReReplication
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal

_SHOWN: Final = 10
"""Files in the message of a refusal."""


class RemovedVolume(msgspec.Struct, kw_only=True):
    """What the removal of a volume has done.

    Attributes:
        volume: The volume.
        copied: Blocks that were copied to other volumes.
        dropped: Blocks with enough other good replicas that it was dropped from.
        unsealed: Blocks that are being written; the close or the recovery of their files drops it.
        only: Blocks that have no other good replica, with their files.
        problems: Why blocks stay on it.
        is_gone: Whether the journal does not know it any more.
    """

    volume: VolumeId
    copied: int = 0
    dropped: int = 0
    unsealed: int = 0
    only: list[OnlyMember] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    is_gone: bool = False


def remove_volume(
    journal: Journal, volumes: Mapping[VolumeId, Volume], volume: VolumeId, copies: ReReplication
) -> RemovedVolume:
    """Copy the blocks of a volume to others, drop it from them, and remove it from the journal.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        volume: The volume.
        copies: Makes the copies, to other volumes.

    Raises:
        ObjectNotFoundError: The volume is not registered.
        SafeModeError: The journal is in safe mode; nothing more is copied.
    """
    journal.apply(LeaveVolume(volume=volume, is_lost=False))
    done = RemovedVolume(volume=volume)
    for page in Comparison(journal, volumes).members(volume, None, None):
        enough = [record for record in page if record.is_settled and copies.is_enough(record, volume)]
        done.dropped += _drop(journal, volume, enough)
        for record in page:
            if not record.is_settled:
                done.unsealed += 1
            elif volume in record.members and record not in enough:
                copied = copies.move(record, volume)
                done.copied += not copied.why_not
                if copied.why_not:
                    done.problems.append(f"block {record.block} was not copied: {copied.why_not}")
    done.only = list(Comparison(journal, volumes).only_members(volume))
    return _forget(journal, done)


def remove_lost_volume(
    journal: Journal, volumes: Mapping[VolumeId, Volume], volume: VolumeId, *, accept_loss: bool
) -> RemovedVolume:
    """Drop a volume that will not return from the blocks, and remove it from the journal.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        volume: The volume.
        accept_loss: Also if it has the only replicas of blocks.

    Raises:
        ConflictError: It has the only replicas of blocks.
        ObjectNotFoundError: The volume is not registered.
    """
    done = RemovedVolume(volume=volume, only=list(Comparison(journal, volumes).only_members(volume)))
    if done.only and not accept_loss:
        paths = sorted({one.path for one in done.only})
        raise ConflictError(
            f"volume {volume} has the only good replicas of {len(done.only)} blocks, of the files "
            f"{', '.join(paths[:_SHOWN])}{', …' if len(paths) > _SHOWN else ''}; nothing was changed; "
            "bring it back, or give these blocks up: --accept-loss"
        )
    journal.apply(LeaveVolume(volume=volume, is_lost=True))
    for page in Comparison(journal, volumes).members(volume, None, None):
        done.unsealed += sum(not record.is_settled for record in page)
        done.dropped += _drop(journal, volume, [record for record in page if record.is_settled])
    return _forget(journal, done)


def _drop(journal: Journal, volume: VolumeId, records: list[BlockRecord]) -> int:
    if not records:
        return 0
    FAILPOINTS.hit("remove.drop.before")
    blocks = tuple((int(record.block), record.stamp) for record in records)
    dropped: int = journal.apply(DropMembers(volume=volume, blocks=blocks)).result
    FAILPOINTS.hit("remove.drop.after")
    return dropped


def _forget(journal: Journal, done: RemovedVolume) -> RemovedVolume:
    with journal.reading() as reading:
        is_member = bool(reading.where(Member, {"volume": done.volume}, limit=1))
    if not is_member:
        journal.apply(ForgetVolume(volume=done.volume))
        done.is_gone = True
    return done
