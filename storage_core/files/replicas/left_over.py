"""Deletion of replicas that no block names any more, in two passes over the volumes.

A volume that was away returns with replicas of blocks that were removed, or that it is no member of any more.
They are never served. The first pass finds them; the second, later, judges each again on the primary and
deletes it at the stamp that both passes saw. One with an unexplained stamp is kept for the operator.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import known_volume
from lockgate.storage_core.files.replicas.replica_check import Problem, ReplicaCheck
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode


class LeftOver(msgspec.Struct, kw_only=True):
    """What a deletion has done, or would do.

    Attributes:
        found: Replicas that the first pass found.
        deleted: Replicas that the second pass deleted.
        kept: Those that it kept: their volume did not let it delete them, their blocks may need them, or they
            changed between the passes.
    """

    found: int = 0
    deleted: int = 0
    kept: int = 0


def delete_left_over(
    journal: Journal, volumes: Mapping[VolumeId, Volume], *, wait_s: float, dry_run: bool = False
) -> LeftOver:
    """Delete the replicas that no block names any more.

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
    done = LeftOver(found=len(named))
    if dry_run or not named:
        return done
    refuse_in_safe_mode(journal, "the deletion of replicas that are left over")
    first = {(volume, block): check.left_over(block, volume) for volume, block in named}
    journal.clock.sleep(wait_s)
    for (volume, block), before in first.items():
        refuse_in_safe_mode(journal, "the deletion of replicas that are left over")
        now = check.left_over(block, volume)
        is_deleted = False
        if before is not None and now is not None and now.stamp == before.stamp:
            FAILPOINTS.hit("left-over.delete.before")
            try:
                is_deleted = known_volume(volumes, volume).delete(block, now.stamp)
            except (NotAppliedError, OutcomeUnknownError):
                is_deleted = False  # the next run tries again
            FAILPOINTS.hit("left-over.delete.after")
        done.deleted += is_deleted
        done.kept += not is_deleted
    return done
