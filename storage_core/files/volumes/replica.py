"""A replica: the bytes of one block on one volume, and what the volume knows of them."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

from lockgate.storage_core.stamp import Stamp

BlockId = NewType("BlockId", int)
"""The journal assigns it and never uses it again."""


class ReplicaState(StrEnum):
    """What is known of a replica's bytes."""

    WRITING = "writing"
    """It takes appends at its stamp."""
    SEALED = "sealed"
    """It takes no appends; its length was chosen by a close or a reseal."""


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replica, as its volume knows it.

    Attributes:
        block: Its block.
        stamp: The newest stamp that created, fenced or finished it.
        state: Whether it takes appends.
        length_bytes: Number of intact bytes; of a damaged replica, those before the damage.
        durable_bytes: Of these, the bytes that survive a restart.
        acknowledged_bytes: What its writer has said that all members have; it may lag, and is 0 where that is
            not known.
        damage: What is wrong with its bytes, for people; empty if nothing is known to be.
        token: Identity of its bytes: a copy that is made later has another one, also at the same stamp.
        is_fenced: Whether a fence has begun that has not made its replica. Of the bytes that are not
            acknowledged, it may not have read all.
    """

    block: BlockId
    stamp: Stamp
    state: ReplicaState
    length_bytes: int
    durable_bytes: int
    acknowledged_bytes: int = 0
    damage: str = ""
    token: str = ""
    is_fenced: bool = False
