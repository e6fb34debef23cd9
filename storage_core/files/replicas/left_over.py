"""Deletion of replicas that no block names any more, and of those in quarantine.

A volume that was away returns with replicas of blocks that were removed, or that it is no member of any more.
They are never served. They are judged twice, the second time later and on the primary, and deleted at the
stamp that both passes saw. One with an unexplained stamp is kept for the operator.

A replica that is set aside is deleted once its block was removed, or all members of it have good replicas; so
is what a process that died while it created a replica has left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.namespace.queries import PAGE
from lockgate.storage_core.files.replicas.comparison import (
    History,
    Problem,
    judge,
    read_block,
    read_history,
    stat_replica,
)
from lockgate.storage_core.files.replicas.replica_check import usable_volumes
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.stamp import Stamp

Volumes = Mapping[VolumeId, Volume]


def delete_replicas(
    journal: Journal, volumes: Volumes, named: Sequence[tuple[VolumeId, BlockId]], *, wait_s: float
) -> int:
    """Judge replicas twice, delete those that are left over both times, and return their number.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        named: The replicas.
        wait_s: Time between the two passes.

    Raises:
        SafeModeError: The journal is in safe mode; nothing more is deleted.
    """
    first = {(volume, block): _left_over(journal, volumes, volume, block) for volume, block in named}
    journal.clock.sleep(wait_s if first else 0)
    deleted = 0
    for (volume, block), before in first.items():
        refuse_in_safe_mode(journal, "the deletion of replicas that are left over")
        now = _left_over(journal, volumes, volume, block)
        if before is not None and now is not None and now.stamp == before.stamp:
            FAILPOINTS.hit("left-over.delete.before")
            with suppress(NotAppliedError, OutcomeUnknownError):  # the next run tries again
                deleted += known_volume(volumes, volume).delete(block, now.stamp)
            FAILPOINTS.hit("left-over.delete.after")
    return deleted


def discard_set_aside(journal: Journal, volumes: Volumes, *, dry_run: bool) -> tuple[int, int]:
    """Delete the replicas in quarantine that are not needed; return how many there are, and how many were.

    Raises:
        SafeModeError: The journal is in safe mode; nothing more is deleted.
    """
    aside = list(_set_aside(journal, volumes))
    discarded = 0
    for volume, block in () if dry_run else aside:
        refuse_in_safe_mode(journal, "the deletion of replicas that are set aside")
        if _is_whole(journal, volumes, block):
            FAILPOINTS.hit("left-over.discard.before")
            with suppress(NotAppliedError, OutcomeUnknownError):  # the next run tries again
                discarded += known_volume(volumes, volume).discard(block)
            FAILPOINTS.hit("left-over.discard.after")
    return len(aside), discarded


def _set_aside(journal: Journal, volumes: Volumes) -> Iterator[tuple[VolumeId, BlockId]]:
    """Yield the replicas in quarantine of the volumes that answer."""
    for volume in usable_volumes(journal, volumes):
        after: BlockId | None = None
        with suppress(NotAppliedError, OutcomeUnknownError):
            while page := known_volume(volumes, volume).quarantined(after, PAGE):
                yield from ((volume, block) for block in page)
                after = page[-1]


def _left_over(journal: Journal, volumes: Volumes, volume: VolumeId, block: BlockId) -> Replica | None:
    """Return a replica that is left over now, unless its block may need it: it may have the only bytes."""
    try:
        replica = stat_replica(known_volume(volumes, volume), block)
    except (NotAppliedError, OutcomeUnknownError):
        return None
    record, history = read_block(journal, block), read_history(journal)
    found = judge(record, volume, replica, history)
    if replica is None or replica.stamp == Stamp() or found is None or found[0] is not Problem.LEFT_OVER:
        return None
    return replica if record is None or _has_good_members(volumes, record, history) else None


def _is_whole(journal: Journal, volumes: Volumes, block: BlockId) -> bool:
    """Return whether a block has good replicas on all its members, or was removed."""
    record, history = read_block(journal, block), read_history(journal)
    if record is None:
        return history.has_made(block)  # a restored journal may lack the block
    return not record.faults and _has_good_members(volumes, record, history)


def _has_good_members(volumes: Volumes, record: BlockRecord, history: History) -> bool:
    """Return whether a block has members without a fault, and all of them have good replicas."""
    for member in record.members:
        try:
            there = stat_replica(known_volume(volumes, member), record.block)
        except (NotAppliedError, OutcomeUnknownError):
            return False
        if there is None or judge(record, member, there, history):
            return False
    return bool(record.members)
