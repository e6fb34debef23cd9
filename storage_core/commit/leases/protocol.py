"""Who drives a job now. Leases make recovery prompt; they never make a commit safe (rule 5).

`Leases` is the seam. A job's leases are in the journal that its `job.json` names (`journal_leases`), or,
where it names none, heartbeats in its folder (`heartbeat`). Whoever takes a lease fences its holder. Two
drivers may both believe in theirs for a while: then the decision's create-if-absent has one winner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.ids import JobAttemptId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp


class LeaseState(StrEnum):
    """What a job's lease says to others."""

    LIVE = "live"
    PARKED = "parked"
    """Between two steps; left alone until its deadline."""
    LAPSED = "lapsed"
    UNKNOWN = "unknown"
    """There is no lease to be read."""


@dataclass(frozen=True)
class LeaseView:
    """A job's lease as others see it; without a stamp and a job attempt where there is none to be read.

    Attributes:
        unread: Why there may be one that this process cannot read, and the remedy; empty where there is none.
    """

    state: LeaseState
    stamp: Stamp | None = None
    job_attempt: JobAttemptId | None = None
    unread: str = ""


class Hold(Protocol):
    """A job's lease that this process took; it is renewed until it is parked, abandoned or lost."""

    @property
    def stamp(self) -> Stamp:
        """Greater than that of every earlier holder."""

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the lease is lost; renew it now unless it was renewed within `within_s`.

        Raises:
            FencedError: Another driver has taken the job over, or the lease has lapsed.
            JournalUnavailableError: It could not be renewed now.
        """

    def park(self, timeout_s: float) -> None:
        """Stop renewing and leave the job to its next step; it lapses after `timeout_s`.

        Raises:
            FencedError: Another driver has taken the job over.
        """

    def abandon(self) -> None:
        """Stop renewing and let the lease lapse, as a crash would."""


class Leases(Protocol):
    """Takes and reads the leases of jobs."""

    def hold(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> Hold:
        """Take the lease with a new stamp, from whoever holds it, and renew it from now on.

        Raises:
            JournalUnavailableError: The job's journal cannot be reached; nothing was changed.
        """

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> LeaseView:
        """Tell how the job's lease stands.

        Args:
            folder: Of the job.
            job: Its record, where it was read already.
        """


def leases_for(settings: Settings, clock: Clock) -> Leases:
    """Return the leases of jobs, wherever each job's are."""
    from lockgate.storage_core.commit.leases.job_leases import JobLeases  # noqa: PLC0415 - it stands on this file

    return JobLeases(settings, clock)
