"""The length of a block: what a reseal chooses, and what readers see of a block that is being written.

Source: docs/internals/files.md, "Which length".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import Replica


class ChosenLength(NamedTuple):
    """A length, and a member that has as many bytes, None if none has any; others get what they lack."""

    length_bytes: int
    source: VolumeId | None


def choose_length(
    replicas: Mapping[VolumeId, Replica],
    *,
    floor_bytes: int,
    target_bytes: int | None,
    accept_loss: bool = False,
) -> ChosenLength | None:
    """Choose the length of a block, or None if no replica has all bytes that it must have.

    A flush is acknowledged once all members have it, so each undamaged replica has all that was acknowledged:
    the longest is the block. One that was cut without a trace is shorter.

    Args:
        replicas: Those of the members that answered a fence, as it returned them.
        floor_bytes: Bytes that are known to be acknowledged; a shorter replica has lost some.
        target_bytes: Target of a truncate that is journaled and not committed.
        accept_loss: Take the longest intact bytes, if no replica has all.
    """
    floor = max([floor_bytes, *(one.acknowledged_bytes for one in replicas.values())])
    if target_bytes is not None:
        floor = target_bytes
    whole = {
        volume: one.length_bytes
        for volume, one in replicas.items()
        if one.length_bytes >= floor and not one.damage
    }
    if not whole and accept_loss:
        whole = {volume: one.length_bytes for volume, one in replicas.items()}
        if not whole:
            return ChosenLength(0, None)
    if not whole:
        return None
    source = max(whole, key=lambda volume: whole[volume])
    return ChosenLength(whole[source] if target_bytes is None else min(target_bytes, whole[source]), source)


def readable_length(record: BlockRecord, replicas: Mapping[VolumeId, Replica]) -> int | None:
    """Return how many bytes of a block readers see, or None if the answers do not tell.

    These are bytes that all members have, so no later commit lacks them, but a truncate.

    Args:
        replicas: Those of the members that answered.
    """
    if record.target_bytes is not None:
        return record.target_bytes  # it is decided: the next reseal cuts the block to it
    if record.is_settled:
        return record.length_bytes
    usable = [one for one in replicas.values() if one.stamp >= record.stamp]
    # What a fenced replica knows may be less than its writer has acknowledged to its caller since.
    at_stamp = [one for one in usable if one.stamp == record.stamp]
    known = max((one.acknowledged_bytes for one in at_stamp), default=0)
    floor = max(record.length_bytes, record.acknowledged_bytes, known)
    if any(one.is_fenced and one.length_bytes > floor for one in usable):
        return None
    is_undamaged = not any(one.damage for one in usable)
    lengths = {one.durable_bytes for one in usable}
    is_fenced = len(at_stamp) < len(usable)
    if is_undamaged and usable and len(usable) == len(record.members):
        return None if is_fenced and len(lengths) > 1 else max(floor, min(lengths))
    if known or (is_undamaged and usable and not is_fenced and max(lengths) <= floor):
        return floor
    return None
