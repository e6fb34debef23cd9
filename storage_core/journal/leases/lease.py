"""Lease: the right of one holder to write one resource, until it lapses.

Taking a lease writes an entry and issues a new stamp; a renewal writes none. Renewal, suspension and release
compare the stamp, so that a holder that was paused learns that it lost its lease. One call renews all leases
of a holder. Its row, states and entries are in `entries/lease_entries.py`.

Source: journal, "Leases".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from sqlalchemy import exists, or_, select

from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.database.driver_errors import TRANSACTION_TRIES
from lockgate.storage_core.journal.database.row_access import SqlRows, columns_of, rows_of
from lockgate.storage_core.journal.database.schema import HOLDER, LEASE
from lockgate.storage_core.journal.entries.lease_entries import (
    RENEWABLE,
    FreeLease,
    Lease,
    LeaseState,
    Purpose,
    Seen,
    Standing,
    SuspendLease,
    TakeLease,
    fenced,
    is_overdue,
    state_of,
)
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.leases.renewal import renew
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.lease_watch import LEASE_WATCH
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.protocol import in_pages

_LEASES_FETCHED: Final = 1000
_HOLDERS_A_QUERY: Final = 100


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A lease and its state at a time of the database's clock.

    Attributes:
        lapses_in_s: 0 for a lease that is free or has lapsed. Otherwise the time after which a second look
            can find that it has lapsed.
    """

    lease: Lease
    state: LeaseState
    is_overdue: bool
    lapses_in_s: float


class Leases:
    """The leases of one journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def take(
        self,
        resource: str,
        holder: str,
        *,
        purpose: Purpose,
        soft_s: float,
        hard_s: float,
        detail: str = "",
        seen: Lease | None = None,
    ) -> Stamp:
        """Take a lease and return its new stamp, which is greater than every earlier holder's.

        Raises:
            LeaseHeldError: Its state does not allow this purpose.
            SafeModeError: The journal is in safe mode, and the purpose is to recover.
        """
        op = TakeLease(
            resource=resource,
            holder=holder,
            purpose=purpose,
            soft_s=soft_s,
            hard_s=hard_s,
            detail=detail,
            seen=None if seen is None else Seen.of(seen),
        )
        stamp: Stamp = self.journal.apply(op).result.stamp
        return stamp

    def renew(
        self, holder: str, held: Mapping[str, Stamp], notes: Mapping[str, Row] | None = None
    ) -> dict[str, str]:
        """Renew all leases of a holder in one row; return a message for each lost one, by resource.

        A lease that no other holder has taken is renewed however late: the clock may have jumped. A recovery
        that is about to take it notices the renewal (`TakeLease.seen`).

        Args:
            holder: The holder.
            held: Stamps of its leases, by resource.
            notes: Soft rows, by resource: one is written in the same transaction if its lease is not lost.

        Raises:
            StateLostError: The database was replaced; nothing was renewed.
        """
        alive = TRANSACTION_TRIES.call(self._renewed, holder, held, notes or {})
        lost = [resource for resource in held if resource not in alive]
        return {resource: fenced(resource, held[resource], self._row(resource)) for resource in lost}

    def suspend(self, resource: str, stamp: Stamp, for_s: float) -> None:
        """Keep a lease for `for_s` without renewals, until its next step.

        Raises:
            FencedError: It is lost.
        """
        self.journal.apply(SuspendLease(resource=resource, stamp=stamp, for_s=for_s))

    def free(self, resource: str, stamp: Stamp) -> None:
        """Free a lease.

        Raises:
            FencedError: It is lost.
        """
        self.journal.apply(FreeLease(resource=resource, stamp=stamp))

    def look(self, resource: str) -> LeaseView | None:
        """Return a lease and its state, from the primary; None if it was never taken."""
        with self.journal.reading() as reading:
            lease, now_s = reading.get(Lease, resource), reading.now_s()
        return None if lease is None else self.watch(lease, now_s)

    def watch(self, lease: Lease, now_s: float, since_s: float | None = None) -> LeaseView:
        """Return the state of a lease that was read just now, and remember when it was seen."""
        return LeaseView(
            lease=lease,
            state=state_of(lease, now_s),
            is_overdue=is_overdue(lease, now_s),
            lapses_in_s=self._lapses_in_s(lease, now_s, since_s),
        )

    def _lapses_in_s(self, lease: Lease, now_s: float, since_s: float | None) -> float:
        match lease.standing:
            case Standing.FREE:
                return 0.0
            case Standing.SUSPENDED:  # it is not renewed, and its deadline is a time of day
                return max(0.0, (lease.suspended_until_s or 0.0) - now_s)
        name = f"{self.journal.identity}/{lease.resource}"
        renewal = (lease.stamp, lease.standing, lease.renewed_s)
        monotonic_s = self.journal.clock.monotonic_s()
        return max(0.0, lease.hard_s - LEASE_WATCH.unrenewed_s(name, renewal, monotonic_s, since_s))

    def _renewed(self, holder: str, held: Mapping[str, Stamp], notes: Mapping[str, Row]) -> set[str]:
        """Renew the leases that the holder still holds, and return their resources."""
        point = f"{current_step()}.journal-renew"
        FAILPOINTS.hit(f"{point}.before")
        database, journal = self.journal.database, self.journal.name
        began_s = time.perf_counter()
        with metrics.span("renew", journal), database.write() as connection:
            alive = renew(connection, database, self.journal.known, holder, held)
            kept = [row for resource, row in notes.items() if resource in alive]
            SqlRows(connection, journal).write({(type(row), row.key): row for row in kept})
        metrics.record_renewal(journal, leases=len(alive), seconds=time.perf_counter() - began_s)
        FAILPOINTS.hit(f"{point}.after")
        return alive

    def _row(self, resource: str) -> Lease | None:
        view = self.look(resource)
        return None if view is None else view.lease


def overdue_leases(reading: Reading, now_s: float, within_s: float) -> Iterator[Lease]:
    """Yield the leases that may have lapsed by the wall clock (`is_overdue`), and free ones, as a stream.

    Indexes find them: leases of a holder that has renewed within `within_s` are not read.
    """
    leases = select(*columns_of(Lease)).where(LEASE.c.journal == reading.journal)
    for query in (
        leases.where(LEASE.c.standing == Standing.FREE),
        leases.where(LEASE.c.standing == Standing.SUSPENDED, LEASE.c.suspended_until_s <= now_s),
        *(leases.where(LEASE.c.standing == one, LEASE.c.dropped_s > 0) for one in sorted(RENEWABLE)),
    ):
        with reading.connection.execute(query.execution_options(yield_per=_LEASES_FETCHED)) as found:
            for page in found.partitions():
                yield from (lease for lease in rows_of(Lease, page) if is_overdue(lease, now_s))
    is_late = or_(HOLDER.c.renewed_s <= now_s - within_s, HOLDER.c.renewed_s > now_s + within_s)
    has_lease = exists().where(LEASE.c.journal == HOLDER.c.journal, LEASE.c.holder == HOLDER.c.holder)
    late = select(HOLDER.c.holder).where(HOLDER.c.journal == reading.journal, is_late, has_lease)
    for holders in in_pages(reading.connection.execute(late).all(), _HOLDERS_A_QUERY):
        for lease in reading.within(Lease, ("holder",), holders):
            if lease.standing in RENEWABLE and lease.dropped_s is None and is_overdue(lease, now_s):
                yield lease
