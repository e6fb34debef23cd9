"""Helpers of the tests of journal databases: one op and the list of entries."""

from __future__ import annotations

from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.entries.lease_entries import TakeLease

QUICK = 0.05
"""Seconds that a lock is waited for, where a test wants the wait to be in vain."""


def take(resource: str, detail: str = "") -> TakeLease:
    return TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120, detail=detail)


def entries(journal: Journal) -> int:
    with journal.reading() as reading:
        return len(reading.entries(0, 1000))
