"""Find the leases that may have lapsed, by indexes: live leases of live holders are not read.

Source: journal, "Costs that must not grow".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import exists, or_, select

from lockgate.storage_core.journal.database.row_access import columns_of, rows_of
from lockgate.storage_core.journal.database.schema import HOLDER, LEASE
from lockgate.storage_core.journal.entries.leases import is_overdue
from lockgate.storage_core.journal.entries.rows import RENEWABLE, Lease, Standing
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stores.pagination import in_pages

_FETCH: Final = 1000
_HOLDERS: Final = 100
"""Holders whose leases are read together."""


def overdue_leases(reading: Reading, now_s: float, within_s: float) -> Iterator[Lease]:
    """Yield the leases that may have lapsed by the wall clock (`is_overdue`), and free ones, as a stream.

    Args:
        reading: State of the primary.
        now_s: Time of the database's clock.
        within_s: Leases of a holder that has renewed in this time are not read, even if their limit is
            shorter: they are found later.
    """
    leases = select(*columns_of(Lease)).where(LEASE.c.journal == reading.journal)
    for query in (
        leases.where(LEASE.c.standing == Standing.FREE),
        leases.where(LEASE.c.standing == Standing.PARKED, LEASE.c.parked_until_s <= now_s),
        *(leases.where(LEASE.c.standing == one, LEASE.c.dropped_s > 0) for one in sorted(RENEWABLE)),
    ):
        with reading.connection.execute(query.execution_options(yield_per=_FETCH)) as found:
            for page in found.partitions():
                yield from (lease for lease in rows_of(Lease, page) if is_overdue(lease, now_s))
    is_late = or_(HOLDER.c.renewed_s <= now_s - within_s, HOLDER.c.renewed_s > now_s + within_s)
    has_lease = exists().where(LEASE.c.journal == HOLDER.c.journal, LEASE.c.holder == HOLDER.c.holder)
    late = select(HOLDER.c.holder).where(HOLDER.c.journal == reading.journal, is_late, has_lease)
    for holders in in_pages(reading.connection.execute(late).all(), _HOLDERS):
        for lease in reading.within(Lease, ("holder",), holders):
            if lease.standing in RENEWABLE and lease.dropped_s is None and is_overdue(lease, now_s):
                yield lease
