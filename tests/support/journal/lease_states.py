"""All leases of a journal."""

from __future__ import annotations

from lockgate.storage_core.journal import Journal, LeaseState
from lockgate.storage_core.journal.entries.lease_entries import Lease, state_of


def lease_states(journal: Journal) -> dict[str, LeaseState]:
    """Return the states of a journal's leases, by resource."""
    with journal.reading() as reading:
        leases, now_s = reading.where(Lease, {}), reading.now_s()
    return {lease.resource: state_of(lease, now_s) for lease in leases}
