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
    """It takes appends at its stamp, and has all bytes that were flushed."""
    SEALED = "sealed"
    """It takes no appends; its length was chosen by a close or a reseal."""
    SUSPECT = "suspect"
    """Its volume was restarted, or a sync failed: durable bytes whose checksums hold; no appends."""
    STALE = "stale"
    """It missed a reseal; it is never served."""


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replica, as its volume knows it.

    Attributes:
        block: Its block.
        stamp: The newest stamp that created, fenced or finished it.
        state: What is known of its bytes.
        length_bytes: Number of bytes received; of a suspect replica, those that are durable and intact.
        durable_bytes: Of these, the bytes that survive a restart.
    """

    block: BlockId
    stamp: Stamp
    state: ReplicaState
    length_bytes: int
    durable_bytes: int
