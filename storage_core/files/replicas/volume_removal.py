"""Removal of a volume: its blocks move to others, or it is lost and they do without it.

It gets no new blocks from the first entry on. The members are dropped by bounded entries. A block that has
no other good replica keeps a lost volume, marked, so that it can be named with its file. A removal that was
stopped is completed by the next one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.namespace.member_marks import DropMembers
from lockgate.storage_core.files.namespace.registered_volumes import ForgetVolume, LeaveVolume
from lockgate.storage_core.files.namespace.rows import Member
from lockgate.storage_core.files.replicas.comparison import Finding, members, only_replicas
from lockgate.storage_core.files.replicas.copies import Copies
from lockgate.storage_core.files.volumes.protocol import VolumeId
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
        only: Blocks that have no other good replica.
        problems: Why blocks stay on it.
        is_gone: Whether the journal does not know it any more.
    """

    volume: VolumeId
    copied: int = 0
    dropped: int = 0
    unsealed: int = 0
    only: list[Finding] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    is_gone: bool = False


def remove_volume(
    journal: Journal, volume: VolumeId, copies: Copies | None, *, accept_loss: bool = False
) -> RemovedVolume:
    """Drop a volume from its blocks, and remove it from the journal.

    Args:
        journal: The journal of the files.
        volume: The volume.
        copies: Makes copies of its blocks; None: it is lost, and nothing is copied.
        accept_loss: Whether a lost one may have the only replicas of blocks.

    Raises:
        ConflictError: It is lost, and has the only replicas of blocks.
        ObjectNotFoundError: The volume is not registered.
        SafeModeError: The journal is in safe mode; nothing more is copied.
    """
    done = RemovedVolume(volume=volume, only=list(only_replicas(journal, volume)))
    if copies is None and done.only and not accept_loss:
        paths = sorted({one.path for one in done.only})
        raise ConflictError(
            f"volume {volume} has the only good replicas of {len(done.only)} blocks, of the files "
            f"{', '.join(paths[:_SHOWN])}{', …' if len(paths) > _SHOWN else ''}; nothing was changed; "
            "bring it back, or give these blocks up: --accept-loss"
        )
    journal.apply(LeaveVolume(volume=volume, is_lost=copies is None))
    for page in members(journal, volume):
        sealed = [record for record in page if record.is_settled]
        done.unsealed += len(page) - len(sealed)
        enough = [one for one in sealed if copies is None or copies.is_enough(one, volume)]
        done.dropped += _drop(journal, volume, enough)
        for record in sealed:
            if copies is not None and volume in record.members and record not in enough:
                copied = copies.move(record, volume)
                done.copied += not copied.why_not
                if copied.why_not:
                    done.problems.append(f"block {record.block} was not copied: {copied.why_not}")
    done.only = list(only_replicas(journal, volume))
    with journal.reading() as reading:
        done.is_gone = not reading.where(Member, {"volume": volume}, limit=1)
    if done.is_gone:
        journal.apply(ForgetVolume(volume=volume))
    return done


def _drop(journal: Journal, volume: VolumeId, records: list[BlockRecord]) -> int:
    if not records:
        return 0
    FAILPOINTS.hit("remove.drop.before")
    blocks = tuple((int(record.block), record.stamp) for record in records)
    dropped: int = journal.apply(DropMembers(volume=volume, blocks=blocks)).result
    FAILPOINTS.hit("remove.drop.after")
    return dropped
