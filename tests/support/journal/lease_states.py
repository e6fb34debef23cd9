"""The states of leases: their allowed transitions, and those of all leases of a journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockgate.storage_core.journal import Journal, LeaseState
from lockgate.storage_core.journal.entries.lease_entries import Lease, state_of

NEXT: Final[Mapping[LeaseState, frozenset[LeaseState]]] = {
    LeaseState.HELD: frozenset({LeaseState.SOFT, LeaseState.SUSPENDED, LeaseState.FREE}),
    LeaseState.SOFT: frozenset({LeaseState.HELD, LeaseState.HARD, LeaseState.SUSPENDED, LeaseState.FREE}),
    LeaseState.SUSPENDED: frozenset({LeaseState.HELD, LeaseState.HARD, LeaseState.FREE}),
    LeaseState.HARD: frozenset(
        {LeaseState.HELD, LeaseState.RECOVERING, LeaseState.SUSPENDED, LeaseState.FREE}
    ),
    LeaseState.RECOVERING: frozenset(
        {LeaseState.HARD, LeaseState.HELD, LeaseState.SUSPENDED, LeaseState.FREE}
    ),
    LeaseState.FREE: frozenset({LeaseState.HELD, LeaseState.RECOVERING}),
}
"""Allowed transitions, by an entry, a renewal or the passing of time."""


def lease_states(journal: Journal) -> dict[str, LeaseState]:
    """Return the states of a journal's leases, by resource."""
    with journal.reading() as reading:
        leases, now_s = reading.where(Lease, {}), reading.now_s()
    return {lease.resource: state_of(lease, now_s) for lease in leases}
