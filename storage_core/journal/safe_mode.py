"""Safe mode: a restored journal may know less than it did, so nothing is reaped or deleted on its word.

Jobs go on: leases are taken over, renewed and given back. What is refused: recovering a lapsed lease (whose
holder could not renew while the journal was away), pruning, and whatever else asks `refuse_in_safe_mode`.
"""

from __future__ import annotations

import pkgutil
from typing import Final

from sqlalchemy import Connection, update

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.database.schema import HEAD
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.leases import RearmLeases
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.maintenance import upkeep
from lockgate.storage_core.journal.write.mutation import Mutation
from lockgate.storage_core.stores.pagination import in_pages

PAGE: Final = 1_000
"""Entries of other families in one transaction."""


def enter_safe_mode(connection: Connection, journal: str, reason: str, now_s: float) -> None:
    """Enter it, in the transaction that restores.

    Args:
        connection: Holds the head's lock.
        journal: Its name.
        reason: For people.
        now_s: By the database's clock.
    """
    connection.execute(
        update(HEAD).where(HEAD.c.journal == journal).values(safe_since_s=now_s, safe_reason=reason)
    )


def leave_safe_mode(journal: Journal) -> int | None:
    """Leave it, as an operator who has looked; returns how many leases were armed anew, None outside of it.

    Every holder has its limits anew first; then each family gives new time to what it keeps (`Family.rearm`),
    such as blobs that nothing refers to: owners that have lost a reference take it again. A crash between the
    steps leaves the journal in safe mode.

    Raises:
        JournalUnavailableError: It was not left.
        OutcomeUnknownError: No answer; leaving it again is harmless.
    """
    with step("safe-mode"):
        if journal.status().safe_since_s is None:
            return None
        rearmed: int = journal.apply(RearmLeases()).result
        _rearm_families(journal)
        with upkeep(journal, "leave") as (connection, _):
            left = update(HEAD).where(HEAD.c.journal == journal.name)
            connection.execute(left.values(safe_since_s=None, safe_reason=""))
    return rearmed


def refuse_in_safe_mode(journal: Journal, doing: str) -> None:
    """Refuse to reap or delete while the journal is in safe mode; asks the primary.

    Args:
        journal: On whose word it would be done.
        doing: What, for people: `pruning the journal`.

    Raises:
        SafeModeError: It is.
    """
    status = journal.status()
    if status.safe_since_s is not None:
        raise SafeModeError(
            f"{doing}: journal {journal.name!r} is in safe mode ({status.safe_reason}); nothing was changed; "
            "see that what it knows is right, then run `lockgate journal leave-safe-mode`"
        )


def _rearm_families(journal: Journal) -> None:
    """Write what each family gives new time to, a page a transaction."""
    for family in known_families():
        if family.rearm:
            with journal.reading() as reading:
                reading.stay_open()
                for page in in_pages(pkgutil.resolve_name(family.rearm)(reading), PAGE):
                    journal.write([Mutation(op=op) for op in page])
