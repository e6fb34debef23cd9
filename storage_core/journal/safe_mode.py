"""Safe mode: a restored journal may have lost entries, so it must not be the reason for a deletion.

Jobs continue: leases are taken over, renewed and freed. Refused are the recovery of a lapsed lease (its
holder could not renew while the journal was down), pruning, and all calls of `refuse_in_safe_mode`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Select, and_, func, or_, select, update

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.database.renewals import renew_holder
from lockgate.storage_core.journal.database.schema import HEAD, IS_RENEWABLE, LEASE, RENEWED_S
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.leases import RearmLeases
from lockgate.storage_core.journal.entries.rows import Standing
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.maintenance import maintenance
from lockgate.storage_core.journal.write.mutation import Mutation
from lockgate.storage_core.stores.pagination import in_pages

PAGE: Final = 1_000
"""Entries of other families for each transaction."""


def enter_safe_mode(connection: Connection, journal: str, reason: str, now_s: float) -> None:
    """Enter safe mode, in the transaction that restores.

    Args:
        connection: Connection that holds the head's lock.
        journal: Name of the journal.
        reason: Shown to operators.
        now_s: Time of the database's clock.
    """
    connection.execute(
        update(HEAD).where(HEAD.c.journal == journal).values(safe_since_s=now_s, safe_reason=reason)
    )


def leave_safe_mode(journal: Journal) -> int | None:
    """Leave safe mode and return the number of renewed leases; return None if it is not active.

    First every lease counts as renewed now. Then each family restarts the retention of what it keeps
    (`Family.rearm`), such as unreferenced blobs, so that owners can take lost references again. A crash
    between the steps leaves the journal in safe mode.

    Raises:
        JournalUnavailableError: The journal is still in safe mode.
        OutcomeUnknownError: No answer; a second call is harmless.
    """
    with step("safe-mode"):
        if journal.status().safe_since_s is None:
            return None
        rearmed = _rearm_unrenewed(journal) + _rearm_holders(journal)
        _rearm_families(journal)
        with maintenance(journal, "leave") as (connection, _):
            left = update(HEAD).where(HEAD.c.journal == journal.name)
            connection.execute(left.values(safe_since_s=None, safe_reason=""))
    return rearmed


def refuse_in_safe_mode(journal: Journal, doing: str) -> None:
    """Raise if the primary is in safe mode.

    Args:
        journal: The journal that the deletion depends on.
        doing: The refused action, for the message: `pruning the journal`.

    Raises:
        SafeModeError: The journal is in safe mode.
    """
    status = journal.status()
    if status.safe_since_s is not None:
        raise SafeModeError(
            f"{doing}: journal {journal.name!r} is in safe mode ({status.safe_reason}); nothing was changed; "
            "see that what it knows is right, then run `lockgate journal leave-safe-mode`"
        )


def _rearm_unrenewed(journal: Journal) -> int:
    """Rearm the leases that no renewal renews, parked and dropped ones; one page for each entry."""
    is_dropped = and_(IS_RENEWABLE, LEASE.c.dropped_s > 0)
    query = select(LEASE.c.resource).where(
        LEASE.c.journal == journal.name, or_(LEASE.c.standing == Standing.PARKED, is_dropped)
    )
    with _read(journal, query) as found:
        pages = in_pages(found.scalars(), PAGE)
        return sum(journal.apply(RearmLeases(resources=page)).result for page in pages)


def _rearm_holders(journal: Journal) -> int:
    """Renew for all holders, a page of them for each transaction; return the number of their leases.

    A restored journal has no rows of holders: this also inserts them.
    """
    query = (
        select(LEASE.c.holder, func.max(RENEWED_S).label("newest_s"), func.count().label("leases"))
        .where(LEASE.c.journal == journal.name, IS_RENEWABLE, LEASE.c.dropped_s.is_(None))
        .group_by(LEASE.c.holder)
    )
    rearmed = 0
    with _read(journal, query) as found:
        for page in in_pages(found, PAGE):
            with maintenance(journal, "rearm") as (connection, head):
                for row in page:
                    renew_holder(connection, journal.name, row.holder, head.now_s, row.newest_s)
                    rearmed += row.leases
    return rearmed


@contextmanager
def _read(journal: Journal, query: Select[Any]) -> Iterator[CursorResult[Any]]:
    """Read the result of a query as a stream, beside writes."""
    with journal.reading() as reading:
        reading.stay_open()
        with reading.connection.execute(query.execution_options(yield_per=PAGE)) as found:
            yield found


def _rearm_families(journal: Journal) -> None:
    """Write each family's rearm entries, one page for each transaction."""
    for family in known_families():
        if family.rearm:
            with journal.reading() as reading:
                reading.stay_open()
                for page in in_pages(pkgutil.resolve_name(family.rearm)(reading), PAGE):
                    journal.write([Mutation(op=op) for op in page])
