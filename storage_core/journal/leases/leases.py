"""Leases: the right of one holder to write one resource, until it lapses.

Taking a lease is an entry and issues a new stamp; renewing is none. Renewal, parking and release are
compare-and-swap on the stamp, so that a paused holder that wakes up is told so. One renewal per holder renews
all that it holds.

Source: journal, "Leases".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import case, collate, select, update

from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.database.retry import tries
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.leases import (
    FreeLease,
    LeaseState,
    ParkLease,
    Purpose,
    TakeLease,
    fenced,
    state_of,
)
from lockgate.storage_core.journal.entries.rows import Lease, Standing
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.stamp import Stamp

LEASE: Final = table_of(Lease)

_LEASES_A_STATEMENT: Final = 10_000
"""SQLite bounds the parameters of a statement at 32,766, PostgreSQL at 65,535."""


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as others see it at a moment of the database's clock."""

    lease: Lease
    state: LeaseState
    seen_s: float


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
        request_id: str | None = None,
    ) -> Stamp:
        """Take a lease; returns the new stamp, greater than every earlier holder's.

        Args:
            resource: What is to be written.
            holder: Whoever will renew it.
            purpose: From which states it may be taken: see `TAKES`.
            soft_s: Without a renewal for so long, another writer may pre-empt.
            hard_s: Without one for so long, recovery may start.
            detail: What the holder says of itself.
            request_id: The same over all tries.

        Raises:
            LeaseHeldError: It is not to be had for this purpose now.
            SafeModeError: The journal is in safe mode, and the purpose is to recover.
        """
        op = TakeLease(
            resource=resource, holder=holder, purpose=purpose, soft_s=soft_s, hard_s=hard_s, detail=detail
        )
        stamp: Stamp = self.journal.apply(op, request_id).result.stamp
        return stamp

    def renew(self, holder: str, held: Mapping[str, Stamp]) -> dict[str, str]:
        """Renew all that a holder holds, in one statement; returns a word about each that is lost.

        A lease that has lapsed (`HARD`) is lost even while nobody has recovered it: whoever is about to
        would not see that its holder is back.

        Args:
            holder: As it took them.
            held: The stamps with which it took them, by resource.
        """
        for attempt in tries():
            with attempt:
                alive = self._renewed(holder, held)
        lost = [resource for resource, stamp in held.items() if alive.get(resource) != stamp]
        return {resource: fenced(resource, held[resource], self._row(resource)) for resource in lost}

    def park(self, resource: str, stamp: Stamp, for_s: float) -> None:
        """Leave it to its next step: it has not lapsed for `for_s`, and nobody renews it.

        Raises:
            FencedError: It is lost.
        """
        self.journal.apply(ParkLease(resource=resource, stamp=stamp, for_s=for_s))

    def free(self, resource: str, stamp: Stamp) -> None:
        """Give it back.

        Raises:
            FencedError: It is lost.
        """
        self.journal.apply(FreeLease(resource=resource, stamp=stamp))

    def look(self, resource: str) -> LeaseView | None:
        """Tell how a lease stands, on the primary; None if nobody has ever taken it."""
        with self.journal.reading() as reading:
            lease, now_s = reading.get(Lease, resource), reading.now_s()
        return None if lease is None else LeaseView(lease=lease, state=state_of(lease, now_s), seen_s=now_s)

    def in_states(self, states: Iterable[LeaseState]) -> Iterator[LeaseView]:
        """Yield the leases that stand so now, by resource."""
        wanted = frozenset(states)
        with self.journal.reading() as reading:
            leases, now_s = reading.where(Lease, {}), reading.now_s()
        for lease in leases:
            state = state_of(lease, now_s)
            if state in wanted:
                yield LeaseView(lease=lease, state=state, seen_s=now_s)

    def _renewed(self, holder: str, held: Mapping[str, Stamp]) -> dict[str, Stamp]:
        """Renew what the holder still has of these; one that it leaves to lapse is not among them."""
        point = f"{current_step()}.journal-renew"
        FAILPOINTS.hit(f"{point}.before")
        database, journal = self.journal.database, self.journal.name
        alive: dict[str, Stamp] = {}
        began_s = time.perf_counter()
        with metrics.span("renew", journal), database.write() as connection:
            now = database.now()
            # Never back, as the clock may go: else a taking that was accepted would be refused when replayed.
            renewed_s = case((LEASE.c.renewed_s > now, LEASE.c.renewed_s), else_=now)
            for resources in _slices(sorted(held)):
                mine = select(LEASE.c.resource).where(
                    LEASE.c.journal == journal,
                    LEASE.c.resource.in_(resources),
                    LEASE.c.holder == holder,
                    LEASE.c.standing.in_([Standing.HELD, Standing.RECOVERING]),
                    LEASE.c.renewed_s + LEASE.c.hard_s > now,
                )
                if not database.is_sqlite:
                    # In the order of a write's locks (`bulk.find`), or the two may wait for each other.
                    mine = mine.order_by(collate(LEASE.c.resource, "C")).with_for_update()
                renewed = connection.execute(
                    update(LEASE)
                    .where(LEASE.c.journal == journal, LEASE.c.resource.in_(mine))
                    .values(renewed_s=renewed_s)
                    .returning(LEASE.c.resource, LEASE.c.epoch, LEASE.c.sequence)
                )
                alive.update({row.resource: Stamp(row.epoch, row.sequence) for row in renewed})
        metrics.renewed(journal, leases=len(alive), seconds=time.perf_counter() - began_s)
        FAILPOINTS.hit(f"{point}.after")
        return alive

    def _row(self, resource: str) -> Lease | None:
        view = self.look(resource)
        return None if view is None else view.lease


def _slices(resources: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield as many as one statement may name."""
    for start in range(0, len(resources), _LEASES_A_STATEMENT):
        yield resources[start : start + _LEASES_A_STATEMENT]
