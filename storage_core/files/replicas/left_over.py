"""Deletion of replicas that no block names any more, and of those in quarantine.

A volume that was away returns with replicas of blocks that were removed, or that it is no member of any more.
They are never served. The first pass finds them; the second, later, judges each again on the primary and
deletes it at the stamp that both passes saw. One with an unexplained stamp is kept for the operator.

A replica that is set aside is deleted once its block was removed, or all members of it have good replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import known_volume
from lockgate.storage_core.files.replicas.replica_check import Problem, ReplicaCheck, known_volumes
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode

_PAGE: Final = 500


class LeftOver(msgspec.Struct, kw_only=True):
    """What a deletion has done, or would do.

    Attributes:
        found: Replicas that the first pass found.
        deleted: Replicas that the second pass deleted.
        kept: Those that it kept: their volume did not let it delete them, their blocks may need them, or they
            changed between the passes.
        set_aside: Damaged replicas that were set aside.
        discarded: Those of them that were deleted.
    """

    found: int = 0
    deleted: int = 0
    kept: int = 0
    set_aside: int = 0
    discarded: int = 0


def delete_left_over(
    journal: Journal, volumes: Mapping[VolumeId, Volume], *, wait_s: float, dry_run: bool = False
) -> LeftOver:
    """Delete the replicas that no block names any more, and those in quarantine that are not needed.

    Args:
        journal: The journal of the files.
        volumes: The volumes that can be reached.
        wait_s: Time between the two passes.
        dry_run: Make the first pass only.

    Raises:
        SafeModeError: The journal is in safe mode; nothing more is deleted.
    """
    check = ReplicaCheck(journal, volumes)
    named = [
        (one.volume, one.block)
        for one in check.findings()
        if one.problem is Problem.LEFT_OVER and one.block is not None
    ]
    aside = list(_set_aside(journal, volumes))
    done = LeftOver(found=len(named), set_aside=len(aside))
    if dry_run or not (named or aside):
        return done
    refuse_in_safe_mode(journal, "the deletion of replicas that are left over")
    for volume, block in aside:
        refuse_in_safe_mode(journal, "the deletion of replicas that are set aside")
        if check.is_whole(block):
            FAILPOINTS.hit("left-over.discard.before")
            with suppress(NotAppliedError, OutcomeUnknownError):  # the next run tries again
                done.discarded += known_volume(volumes, volume).discard(block)
            FAILPOINTS.hit("left-over.discard.after")
    if named:
        done.deleted = delete_replicas(journal, volumes, named, wait_s=wait_s)
        done.kept = len(named) - done.deleted
    return done


def delete_replicas(
    journal: Journal,
    volumes: Mapping[VolumeId, Volume],
    named: Sequence[tuple[VolumeId, BlockId]],
    *,
    wait_s: float,
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
    check = ReplicaCheck(journal, volumes)
    deleted = 0
    first = {(volume, block): check.left_over(block, volume) for volume, block in named}
    journal.clock.sleep(wait_s)
    for (volume, block), before in first.items():
        refuse_in_safe_mode(journal, "the deletion of replicas that are left over")
        now = check.left_over(block, volume)
        if before is not None and now is not None and now.stamp == before.stamp:
            FAILPOINTS.hit("left-over.delete.before")
            with suppress(NotAppliedError, OutcomeUnknownError):  # the next run tries again
                deleted += known_volume(volumes, volume).delete(block, now.stamp)
            FAILPOINTS.hit("left-over.delete.after")
    return deleted


def _set_aside(journal: Journal, volumes: Mapping[VolumeId, Volume]) -> Iterator[tuple[VolumeId, BlockId]]:
    """Yield the replicas in quarantine of the volumes that answer."""
    for volume in known_volumes(journal, volumes):
        after: BlockId | None = None
        while True:
            try:
                page = known_volume(volumes, volume).quarantined(after, _PAGE)
            except (NotAppliedError, OutcomeUnknownError):
                break
            yield from ((volume, block) for block in page)
            if len(page) < _PAGE:
                break
            after = page[-1]
