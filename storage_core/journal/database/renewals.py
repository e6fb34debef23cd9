"""Renewals: one row for each holder, whatever it holds.

A lease that is held was last renewed at the later of two times: its own, from when it was taken, and its
holder's. If its holder has dropped it, only its own counts (`Lease.dropped_s`).

Locks are taken in the order head, holder, lease. A renewal locks its holder's row, and not the head. A write
locks the holders' rows of all leases that it reads, before it reads them: so it sees each renewal that was
acknowledged, and the next renewal sees what it has written. SQLite has one lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Insert, Select, bindparam, case, literal_column, select

from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.pipeline import Statement, is_sqlite
from lockgate.storage_core.journal.database.schema import HOLDER, LEASE, insert_into
from lockgate.storage_core.journal.entries.lease_entries import RENEWABLE, Lease
from lockgate.storage_core.journal.entries.state import Row

TICK_S: Final = 1e-6
"""Least step of `renewed_s` at a renewal, for a clock that stands still or was set back."""


def lock_holders(journal: str, resources: Sequence[tuple[Any, ...]]) -> Statement:
    """Return the statement that locks the rows of the leases' holders, who stay: the head is locked."""
    given = bulk.parameters(journal, [LEASE.c.resource], resources)
    return Statement(_lock_holders(), given, keeps_plan=False)


def add_holders(journal: str, changed: Iterable[Row | None], *, for_sqlite: bool) -> list[Statement]:
    """Return the statement, if any, that inserts the holders of changed leases that have no row yet."""
    leases = (row for row in changed if isinstance(row, Lease) and row.standing in RENEWABLE)
    holders = sorted({lease.holder for lease in leases})
    return [_add(journal, holders, for_sqlite)] if holders else []


def add_holder(journal: str, holder: str, *, for_sqlite: bool) -> Statement:
    """Return the statement that inserts a holder's row if it has none."""
    return _add(journal, [holder], for_sqlite)


def renew_holder(connection: Connection, journal: str, holder: str, now_s: float, newest_s: float) -> None:
    """Renew all leases that a holder has not dropped.

    The time is later than the last one, even if the clock was set back: a recovery must see the renewal, and
    replay could otherwise refuse a `TakeLease` that was accepted.
    """
    row = insert_into(HOLDER, is_sqlite(connection)).values(
        journal=journal, holder=holder, renewed_s=max(now_s, newest_s + TICK_S)
    )
    new_s, key = row.excluded.renewed_s, ["journal", "holder"]
    later_s = case((HOLDER.c.renewed_s > new_s, HOLDER.c.renewed_s), else_=new_s)
    connection.execute(row.on_conflict_do_update(index_elements=key, set_={"renewed_s": later_s}))


def _add(journal: str, holders: Sequence[str], for_sqlite: bool) -> Statement:
    given = bulk.parameters(journal, [HOLDER.c.holder], [(holder,) for holder in holders])
    return Statement(_add_holders(for_sqlite), given)


@cache
def _lock_holders() -> Select[Any]:
    held = bulk.matching([[LEASE.c.holder]], ["resource"], False).subquery()
    return (
        select(HOLDER.c.holder)
        .where(HOLDER.c.journal == bindparam(bulk.JOURNAL), HOLDER.c.holder.in_(select(held.c.holder)))
        .with_for_update()
    )


@cache
def _add_holders(for_sqlite: bool) -> Insert:
    given = bulk.given_in([HOLDER.c.holder], for_sqlite).subquery()
    # SQLite takes ON CONFLICT after a SELECT without WHERE for the condition of a join.
    rows = select(bindparam(bulk.JOURNAL), given.c.holder, literal_column("0.0")).where(literal_column("1=1"))
    names = ["journal", "holder", "renewed_s"]
    return insert_into(HOLDER, for_sqlite).from_select(names, rows).on_conflict_do_nothing()
