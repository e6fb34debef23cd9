"""The journal of this process, and its relation to the journal that a job's record names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.settings import Settings

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal


def own_journal(settings: Settings, clock: Clock) -> Journal | None:
    """Return the journal of this process, or None.

    Raises:
        JournalUnavailableError: The journal cannot be reached.
    """
    if not settings.has_journal:
        return None
    from lockgate.storage_core.journal.process_journal import configured_journal  # noqa: PLC0415 - half a second, and ours

    return configured_journal(settings, clock)


def journal_for_job(settings: Settings, clock: Clock) -> str:
    """Return the journal's identity, URL without password, and name for a new job's record; "" without one.

    Raises:
        JournalUnavailableError: The journal cannot be reached, so no job can be set up.
    """
    journal = own_journal(settings, clock)
    if journal is None:
        return ""
    return f"{journal.status().identity}@{journal.url}#{journal.name}"


def is_journal_of(journal: Journal, job: JobRecord) -> bool:
    """Return whether a job's leases are in this journal."""
    return job.journal.partition("@")[0] == journal.identity
