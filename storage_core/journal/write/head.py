"""The head: one row for each journal. Lock it, begin an epoch, enter safe mode and leave it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Connection,
    Select,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.database import NOW, Database, now_parameter, timeline
from lockgate.storage_core.journal.database.pipeline import (
    PLANS_KEPT,
    SYNCHRONOUS_COMMIT,
    Row,
    Statement,
    execute_pipelined,
)
from lockgate.storage_core.journal.database.schema import EPOCH, HEAD, HOLDER, SAFE_REASON, table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.read.same_journal import (
    Known,
    gone_back,
    journal_gone,
    refuse_other_branch,
    refuse_other_journal,
)
from lockgate.storage_core.stamp import Stamp

EPOCH_STEP: Final = 10**12
"""Restores begin epochs that are multiples of this, and reserve them; no other epoch is one.

A restore may not know of the epochs that began by themselves after its checkpoint. Its own is greater than a
thousand of them together, because stamps never fall: a lease or a replica of theirs would be the newer one.
"""

_AUTHORS: Final = 10**9
"""An epoch that begins by itself has one of so many numbers; see `epoch_after`."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A journal's locked head row, and the time.

    Attributes:
        identity: Random id of the journal.
        stamp: Stamp of the newest entry.
        now_s: Time of the database's clock, after the lock.
        timeline: Current timeline of the server.
        requests_since_s: Request ids from this time on are kept.
    """

    identity: str
    stamp: Stamp
    now_s: float
    timeline: int
    is_safe_mode: bool
    requests_since_s: float


class SafeReason(StrEnum):
    """Why a journal is in safe mode."""

    RESTORED = "restored"
    PUT_BACK = "put-back"
    OPERATOR = "operator"


def lock_head(connection: Connection, database: Database, known: Known) -> Head:
    """Lock and return a journal's head row; begin a new epoch if the server's timeline has changed.

    Raises:
        StateLostError: The database is not the known one.
    """
    (locked,) = execute_pipelined(connection, [lock_statement(database, known.journal, keeps_plans=False)])
    return read_head(connection, database, known, locked)


def read_head(connection: Connection, database: Database, known: Known, locked: Sequence[Row]) -> Head:
    """Return the head from the result of `lock_statement`; begin a new epoch if the timeline has changed.

    Raises:
        StateLostError: The database is not the known one.
    """
    if not locked:
        raise journal_gone(database.name, known)
    ((identity, epoch, sequence, safe_since_s, requests_since_s, timeline, now_s, server_timeline, *_),) = (
        locked
    )
    refuse_other_journal(database.name, known, identity)
    refuse_other_branch(connection, database.name, known, epoch)
    if timeline != server_timeline:
        reason = f"the server's timeline changed from {timeline} to {server_timeline}"
        last = Stamp(epoch, sequence)
        epoch = begin_epoch(
            connection, known.journal, last, timeline=server_timeline, reason=reason, now_s=now_s
        )
    elif Stamp(epoch, sequence) < known.newest:
        raise gone_back(database.name, known, Stamp(epoch, sequence))
    return Head(
        identity=identity,
        stamp=Stamp(epoch, sequence),
        now_s=now_s,
        timeline=server_timeline,
        is_safe_mode=safe_since_s is not None,
        requests_since_s=requests_since_s,
    )


def lock_statement(database: Database, journal: str, *, keeps_plans: bool) -> Statement:
    """Return the statement that locks and reads the head's row, with the time and the timeline."""
    lock = _lock(database.is_sqlite, keeps_plans)
    return Statement(lock, {bulk.JOURNAL: journal, NOW: database.injected_now_s()})


@cache
def _lock(for_sqlite: bool, keeps_plans: bool) -> Select[Any]:
    """Lock the head's row without writing it, so that a write makes one version of it, not two."""
    # PostgreSQL computes the columns of a SELECT … FOR UPDATE before it waits for the row, so the query
    # around it reads the time. On SQLite the transaction already holds the lock.
    names = ("identity", "epoch", "sequence", "safe_since_s", "requests_since_s", "timeline")
    head = select(*(HEAD.c[name] for name in names)).where(HEAD.c.journal == bindparam(bulk.JOURNAL))
    locked = (head if for_sqlite else head.with_for_update()).subquery()
    return select(
        *(locked.c[name] for name in names),
        now_parameter(for_sqlite),
        timeline(for_sqlite),
        *(() if for_sqlite else (literal_column(SYNCHRONOUS_COMMIT, Text),)),  # it may be off by a reload
        *(PLANS_KEPT if keeps_plans else ()),
    )


def begin_epoch(
    connection: Connection,
    journal: str,
    last: Stamp,
    *,
    timeline: int,
    reason: str,
    now_s: float,
    epoch: int | None = None,
) -> int:
    """Begin a new epoch, so that no stamp of the previous one is issued again, and return its number."""
    number = epoch or epoch_after(last.epoch)
    connection.execute(
        insert(EPOCH).values(
            journal=journal,
            epoch=number,
            before=last.sequence,
            timeline=timeline,
            reason=reason,
            began_s=now_s,
        )
    )
    connection.execute(update(HEAD).where(HEAD.c.journal == journal).values(epoch=number, timeline=timeline))
    return number


def epoch_after(last: int) -> int:
    """Return the number of an epoch that begins by itself.

    It is random, because nothing else tells two servers apart: of two standbys that are promoted from one
    primary, neither knows of the other, and both have the same timeline.
    """
    number = last + 1 + secrets.randbelow(_AUTHORS)
    return number if number % EPOCH_STEP else number + 1


def enter_safe_mode(
    connection: Connection, journal: str, reason: SafeReason, text: str, now_s: float
) -> None:
    """Add a reason for safe mode, or give a known one a new text and time.

    Unless an operator asks for it, the database is a copy of an older state: its soft tables are emptied.
    """
    if reason is not SafeReason.OPERATOR:
        for soft in (HOLDER, *map(table_of, known_families().soft_rows)):
            connection.execute(delete(soft).where(soft.c.journal == journal))
    drop_reason(connection, journal, reason)
    row = {"journal": journal, "reason": reason, "text": text, "since_s": now_s}
    connection.execute(insert(SAFE_REASON).values(row))
    _set_flag(connection, journal)


def drop_reason(connection: Connection, journal: str, reason: str) -> None:
    """Remove a reason; safe mode ends if it was the last one."""
    connection.execute(
        delete(SAFE_REASON).where(SAFE_REASON.c.journal == journal, SAFE_REASON.c.reason == reason)
    )
    _set_flag(connection, journal)


def _set_flag(connection: Connection, journal: str) -> None:
    """Repeat the oldest time of a reason in the head's row, which every write reads."""
    since_s = select(func.min(SAFE_REASON.c.since_s)).where(SAFE_REASON.c.journal == journal)
    connection.execute(
        update(HEAD).where(HEAD.c.journal == journal).values(safe_since_s=since_s.scalar_subquery())
    )
