"""Epochs: each begins at a failover or a restore, and records how much of those before it survived."""

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
        epoch: Its number; greater than all before it, not always by one.
        before: The last sequence of the epochs before it that survived.
        timeline: Of the server then.
        reason: Why it began, for people.
        began_s: By the database's clock.
    """

    epoch: int
    before: int
    timeline: int
    reason: str
    began_s: float


def read_epochs(reading: Reading) -> list[Epoch]:
    """Return a journal's epochs in their order."""
    names = Epoch.__struct_fields__
    question = select(*(EPOCH.c[name] for name in names)).where(EPOCH.c.journal == reading.journal)
    rows = reading.connection.execute(question.order_by(EPOCH.c.epoch))
    return [Epoch(**dict(zip(names, row, strict=True))) for row in rows]


def epoch_of(epochs: Sequence[Epoch], sequence: int) -> int:
    """Return the epoch in which an entry of this sequence was accepted; 0 if in none of them."""
    return max((epoch.epoch for epoch in epochs if epoch.before < sequence), default=0)


def survived(epochs: Sequence[Epoch], stamp: Stamp) -> bool:
    """Tell whether a stamp is one of this history, not of a branch that a failover or a restore cut off."""
    later = (epoch.before for epoch in epochs if epoch.epoch > stamp.epoch)
    return any(epoch.epoch == stamp.epoch for epoch in epochs) and stamp.sequence <= min(
        later, default=stamp.sequence
    )
