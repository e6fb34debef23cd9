"""Job leases: the right of one driver to act for a job, and the journal that keeps it.

Leases speed up recovery; commits are safe without them. A job's leases are in the journal that its `job.json`
names (`journal_leases`), or else heartbeats in its folder (`heartbeat`). Taking a lease fences its holder.
Two drivers may both believe they hold the lease for a while; the decision is created if absent, so one of
them wins.
Source: architecture, rule 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.ids import JobAttemptId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal


class JobLeaseState(StrEnum):
    """State of a job's lease."""

    LIVE = "live"
    SUSPENDED = "suspended"
    """The job is between two steps; recovery ignores it until the deadline."""
    OVERDUE = "overdue"
    """Its limit is over by the clock, which may have jumped: a second look, `lapses_in_s` later, decides."""
    LAPSED = "lapsed"
    """Released, or seen without a renewal for its whole limit on a monotonic clock."""
    UNKNOWN = "unknown"
    """No lease can be read."""


@dataclass(frozen=True)
class JobLeaseView:
    """A job's lease as others see it; without stamp and job attempt if no lease can be read.

    Attributes:
        unread: Why this process cannot read a lease that may exist, and the remedy; else empty.
        lapses_in_s: If it is overdue: when this process can find that it has lapsed.
    """

    state: JobLeaseState
    stamp: Stamp | None = None
    job_attempt: JobAttemptId | None = None
    unread: str = ""
    lapses_in_s: float = 0.0


class HeldLease(Protocol):
    """A job's lease that this process took; it is renewed until it is suspended, abandoned or lost."""

    @property
    def stamp(self) -> Stamp:
        """Stamp of the lease, greater than that of every earlier holder."""

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the lease is lost; renew it unless it was renewed within `within_s`.

        Raises:
            FencedError: Another driver has taken the job over, or the lease has lapsed.
            JournalUnavailableError: The lease could not be renewed.
        """

    def suspend(self, timeout_s: float) -> None:
        """Stop renewing and leave the job to its next step; it lapses after `timeout_s`.

        Raises:
            FencedError: Another driver has taken the job over.
        """

    def abandon(self) -> None:
        """Stop renewing and let the lease lapse, as a crash would."""


class JobLeases(Protocol):
    """Takes and reads the leases of jobs."""

    def take(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> HeldLease:
        """Take the lease from its holder with a new stamp, and keep renewing it.

        Raises:
            JournalUnavailableError: The job's journal cannot be reached; nothing was changed.
        """

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> JobLeaseView:
        """Return the state of the job's lease.

        Args:
            folder: Folder of the job.
            job: Record of the job, if it was already read.
        """


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
