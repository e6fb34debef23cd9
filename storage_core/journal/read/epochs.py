"""Epochs: each begins at a failover or a restore, and records which entries before it survived."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import select

from lockgate.storage_core.journal.database.schema import EPOCH
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of a journal.

    Attributes:
        epoch: Number of the epoch; greater than all before, not always by one.
        before: Last sequence of the earlier epochs that survived.
        timeline: Timeline of the server at its beginning.
        reason: Why it began, for operators.
        began_s: When it began, by the database's clock.
    """

    epoch: int
    before: int
    timeline: int
    reason: str
    began_s: float


def read_epochs(reading: Reading) -> list[Epoch]:
    """Return a journal's epochs, oldest first."""
    names = Epoch.__struct_fields__
    query = select(*(EPOCH.c[name] for name in names)).where(EPOCH.c.journal == reading.journal)
    rows = reading.connection.execute(query.order_by(EPOCH.c.epoch))
    return [Epoch(**dict(zip(names, row, strict=True))) for row in rows]


def epoch_of(epochs: Sequence[Epoch], sequence: int) -> int:
    """Return the epoch in which the entry of this sequence was accepted, 0 if none."""
    return max((epoch.epoch for epoch in epochs if epoch.before < sequence), default=0)


def survived(epochs: Sequence[Epoch], stamp: Stamp) -> bool:
    """Return whether a stamp belongs to this history, not to a branch cut off by a failover or a restore."""
    later = (epoch.before for epoch in epochs if epoch.epoch > stamp.epoch)
    return any(epoch.epoch == stamp.epoch for epoch in epochs) and stamp.sequence <= min(
        later, default=stamp.sequence
    )
