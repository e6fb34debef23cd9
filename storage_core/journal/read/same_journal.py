"""Refuse a database that is not the one that this process opened: another journal, or an older state of it.

A database can be dropped and made again, or put back from a copy, under an open process. Its next stamps are
then those that were issued before, to other holders.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    bindparam,
    exists,
    literal_column,
    or_,
    select,
    tuple_,
)

from lockgate.storage_core.errors import ObjectNotFoundError, StateLostError
from lockgate.storage_core.journal.database.database import timeline
from lockgate.storage_core.journal.database.schema import EPOCH, HEAD
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp

_REMEDY: Final = (
    "nothing was changed; see that LOCKGATE_JOURNAL_URL names the right database and what was done to it; "
    "put the right one back, or start this process again to go on with what is there"
)


class Known(msgspec.Struct, frozen=True):
    """What a process knows of its journal.

    Attributes:
        journal: Name of the journal.
        identity: Identity that was found when the process opened it.
        newest: The newest stamp that the primary has returned to this process.
    """

    journal: str
    identity: str
    newest: Stamp = Stamp()


def refuse_other_state(reading: Reading, known: Known) -> None:
    """Raise if a state of the primary is of another journal, or older than what this process has seen.

    After a failover the head may be older until the first write, which begins a new epoch.

    Raises:
        StateLostError: It is another journal, or entries are missing; the message names both.
    """
    try:
        status = reading.status()
    except ObjectNotFoundError:
        raise journal_gone(reading.database.name, known) from None
    refuse_other_journal(reading.database.name, known, status.identity)
    refuse_other_branch(reading.connection, reading.database.name, known, status.stamp.epoch)
    if status.stamp < known.newest and not _has_failed_over(reading):
        raise gone_back(reading.database.name, known, status.stamp)


def refuse_other_journal(where: str, known: Known, identity: str) -> None:
    """Raise if the identity that was found is not the known one.

    Raises:
        StateLostError: It is another journal.
    """
    if identity != known.identity:
        raise StateLostError(
            f"journal {where} holds another journal named {known.journal!r} (identity {identity}) than the "
            f"one that this process has opened ({known.identity}): the database was replaced; {_REMEDY}"
        )


def refuse_other_branch(connection: Connection, where: str, known: Known, epoch: int) -> None:
    """Raise if the journal never had the newest epoch that the process has seen.

    Two standbys of one primary can both be promoted: each begins an epoch of its own.

    Args:
        connection: Connection to the primary, with an open transaction.
        where: Name of the database.
        known: What the process knows of the journal.
        epoch: Epoch of the head that was found.

    Raises:
        StateLostError: It never had that epoch.
    """
    if known.newest.epoch in {0, epoch}:
        return
    query = select(EPOCH.c.epoch).where(EPOCH.c.journal == known.journal, EPOCH.c.epoch == known.newest.epoch)
    if connection.execute(query).first() is None:
        raise StateLostError(
            f"journal {where} is in epoch {epoch} and has no epoch {known.newest.epoch}, which this process "
            f"has seen: that one began on another server, or a failover lost it; {_REMEDY}"
        )


def gone_back(where: str, known: Known, stamp: Stamp) -> StateLostError:
    """Return the error for a head that is older than what the process has seen."""
    return StateLostError(
        f"journal {where} is at {stamp}, and this process has seen {known.newest}: the database was replaced "
        f"by an older copy; {_REMEDY}"
    )


def journal_gone(where: str, known: Known) -> StateLostError:
    """Return the error for a database that does not hold the journal any more."""
    return StateLostError(
        f"journal {where} holds no journal {known.journal!r} any more: the database was replaced; {_REMEDY}"
    )


@cache
def is_same(for_sqlite: bool) -> ColumnElement[bool]:
    """Return the condition of `refuse_other_state`, for a statement that must not change another journal.

    Its parameters are those of `as_parameters`.
    """
    epoch = bindparam("known_epoch", type_=BigInteger)
    seen = tuple_(epoch, bindparam("known_sequence"))
    is_of_branch = exists(
        select(EPOCH.c.epoch).where(EPOCH.c.journal == HEAD.c.journal, EPOCH.c.epoch == epoch)
    )
    return exists(
        select(HEAD.c.journal).where(
            HEAD.c.journal == bindparam("known_journal"),
            HEAD.c.identity == bindparam("known_identity"),
            or_(tuple_(HEAD.c.epoch, HEAD.c.sequence) >= seen, HEAD.c.timeline != timeline(for_sqlite)),
            or_(epoch == literal_column("0"), is_of_branch),
        )
    )


def as_parameters(known: Known) -> Mapping[str, Any]:
    """Return the parameters of `is_same`."""
    return {
        "known_journal": known.journal,
        "known_identity": known.identity,
        "known_epoch": known.newest.epoch,
        "known_sequence": known.newest.sequence,
    }


def _has_failed_over(reading: Reading) -> bool:
    """Return whether the server has a new timeline, on which no entry was written yet."""
    question = select(HEAD.c.timeline != timeline(reading.database.is_sqlite))
    return bool(reading.connection.execute(question.where(HEAD.c.journal == reading.journal)).scalar())
