"""Safe mode: a restored journal may have lost entries, so it must not be the reason for a deletion.

It has one or more reasons (`SafeReason`); each is left on its own, and the last one ends it.

Jobs continue: leases are taken over, renewed and freed. Refused are the recovery of a lapsed lease (its
holder could not renew while the journal was down), pruning, and all calls of `refuse_in_safe_mode`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Select, and_, func, or_, select

from lockgate.storage_core.errors import InvalidInputError, SafeModeError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.database.renewals import renew_holder
from lockgate.storage_core.journal.database.schema import IS_RENEWABLE, LEASE, RENEWED_S, SAFE_REASON
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import RearmLeases, Standing
from lockgate.storage_core.journal.journal import Journal, maintenance
from lockgate.storage_core.journal.read.snapshot_read import Status
from lockgate.storage_core.journal.write.head import SafeReason, drop_reason, enter_safe_mode
from lockgate.storage_core.journal.write.mutation import Mutation
from lockgate.storage_core.stores.protocol import in_pages

PAGE: Final = 1_000
"""Entries of other families for each transaction."""


def add_operators_reason(journal: Journal, text: str) -> None:
    """Enter safe mode as an operator; a second call only changes the text.

    Raises:
        JournalUnavailableError: Nothing was changed.
        OutcomeUnknownError: No answer; a second call is harmless.
    """
    with step("safe-mode"), maintenance(journal, "enter") as (connection, head):
        enter_safe_mode(connection, journal.name, SafeReason.OPERATOR, text, head.now_s)


def leave_safe_mode(journal: Journal, reason: str = "") -> int | None:
    """Drop a reason for safe mode; safe mode ends with the last one.

    Before it ends, every lease counts as renewed now. Then each family restarts the retention of what it
    keeps (`Family.rearm`), such as unreferenced blobs, so that owners can take lost references again. A crash
    between the steps leaves the journal in safe mode.

    Args:
        journal: The journal.
        reason: Name of the reason; it may be left out if there is only one.

    Returns:
        Number of renewed leases, 0 if other reasons remain; None if the journal is not in safe mode.

    Raises:
        InvalidInputError: There is no such reason, or there are several and none was named.
        JournalUnavailableError: The journal is still in safe mode.
        OutcomeUnknownError: No answer; a second call is harmless.
    """
    with step("safe-mode"):
        status = journal.status()
        if status.safe_since_s is None:
            return None
        reason = _chosen(status, reason)
        rearmed = 0
        is_last = {one.reason for one in status.safe_reasons} <= {reason}
        while True:
            if is_last:
                rearmed = _rearm_unrenewed(journal) + _rearm_holders(journal)
                _rearm_families(journal)
            with maintenance(journal, "leave") as (connection, _):
                if is_last or not _is_only(connection, journal.name, reason):
                    drop_reason(connection, journal.name, reason)
                    return rearmed
            is_last = True  # another process has dropped the others meanwhile


def refuse_in_safe_mode(journal: Journal, doing: str) -> None:
    """Raise if the primary is in safe mode.

    Raises:
        SafeModeError: The journal is in safe mode.
    """
    status = journal.status()
    if status.safe_since_s is not None:
        raise SafeModeError(
            f"{doing}: journal {journal.name!r} is in safe mode ({status.why_safe}); nothing was changed; "
            "see that what it knows is right, then run `lockgate journal leave-safe-mode`"
        )


def _chosen(status: Status, reason: str) -> str:
    names = [one.reason for one in status.safe_reasons]
    if (reason and reason not in names) or (not reason and len(names) > 1):
        problem = f"{reason!r} is no reason for safe mode" if reason else "safe mode has several reasons"
        raise InvalidInputError(
            f"{problem}; nothing was changed; name one of them: `lockgate journal leave-safe-mode REASON`; "
            f"they are {status.why_safe}"
        )
    return reason or "".join(names)


def _is_only(connection: Connection, journal: str, reason: str) -> bool:
    others = select(SAFE_REASON.c.reason).where(
        SAFE_REASON.c.journal == journal, SAFE_REASON.c.reason != reason
    )
    return connection.execute(others.limit(1)).first() is None


def _rearm_unrenewed(journal: Journal) -> int:
    """Rearm the leases that no renewal renews, suspended and dropped ones; one page for each entry."""
    is_dropped = and_(IS_RENEWABLE, LEASE.c.dropped_s > 0)
    query = select(LEASE.c.resource).where(
        LEASE.c.journal == journal.name, or_(LEASE.c.standing == Standing.SUSPENDED, is_dropped)
    )
    with _read(journal, query) as found:
        pages = in_pages(found.scalars(), PAGE)
        return sum(journal.apply(RearmLeases(resources=page)).result for page in pages)


def _rearm_holders(journal: Journal) -> int:
    """Renew for all holders, a page of them for each transaction; return the number of their leases."""
    # A restored journal has no rows of holders: `renew_holder` also inserts them.
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
