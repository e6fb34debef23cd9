"""The reasons for safe mode. Each is left on its own; safe mode ends with the last one."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import Connection, column, delete, func, insert, select, table, update

from lockgate.storage_core.journal.database.schema import HEAD, SAFE_REASON
from lockgate.storage_core.journal.entries.family import known_families


class SafeReason(StrEnum):
    """Why a journal is in safe mode."""

    RESTORED = "restored"
    PUT_BACK = "put-back"
    OPERATOR = "operator"


def enter_safe_mode(
    connection: Connection, journal: str, reason: SafeReason, text: str, now_s: float
) -> None:
    """Add a reason for safe mode, or give a known one a new text and time.

    Unless an operator asks for it, the database is a copy of an older state: its soft tables are emptied.

    Args:
        connection: Connection that holds the head's lock.
        journal: Name of the journal.
        reason: Name of the reason.
        text: Shown to operators.
        now_s: Time of the database's clock.
    """
    if reason is not SafeReason.OPERATOR:
        for name in known_families().soft_tables:
            soft = table(name, column("journal"))
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
