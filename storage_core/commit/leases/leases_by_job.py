"""Select where a job's leases are: in the journal that its `job.json` names, or in its folder.

A process with another journal sees the lease as unknown. It may still write, commit and recover the job: the
store alone makes that safe.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.heartbeat import HeartbeatLeases
from lockgate.storage_core.commit.leases.job_lease import (
    HeldLease,
    JobLeases,
    JobLeaseState,
    JobLeaseView,
    is_journal_of,
    own_journal,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.errors import FencedError, JournalUnavailableError
from lockgate.storage_core.ids import JobAttemptId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

LOG: Final = logging.getLogger("lockgate.lease")


@dataclass(frozen=True)
class LeasesByJob:
    """Leases of all jobs, in each job's journal or folder."""

    settings: Settings
    clock: Clock

    def take(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> HeldLease:
        """Take the lease from its holder with a new stamp, and keep renewing it."""
        return self._of(folder, job).take(folder, job, job_attempt)

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> JobLeaseView:
        """Return the state of the job's lease."""
        job = job or folder.job()
        try:
            leases = self._of(folder, job)
        except JournalUnavailableError as error:
            return JobLeaseView(JobLeaseState.UNKNOWN, unread=str(error))
        return leases.look(folder, job)

    def check_driver(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> None:
        """Raise `FencedError` if another job attempt has the lease."""
        leased = self.look(folder, job).job_attempt
        if leased not in {None, job_attempt}:
            raise FencedError(
                f"job {job.job_id} at {folder.store.url}: job attempt {job_attempt} lost the job to "
                f"{leased}; its tasks do not commit any more; nothing was changed"
            )

    def look_again(self, folder: JobFolder, job: JobRecord, overdue: JobLeaseView, who: str) -> JobLeaseView:
        """Watch an overdue lease until it is renewed or has lapsed, and return its state then.

        Args:
            folder: Folder of the job.
            job: Record of the job.
            overdue: Result of `look`.
            who: Who waits, for the log.
        """
        LOG.warning(
            "job %s at %s: its lease is overdue by the clock; %s watches it for %.0f s, because its driver "
            "may be alive and a clock may have jumped",
            folder.job_id,
            folder.store.url,
            who,
            overdue.lapses_in_s,
        )
        self.clock.sleep(overdue.lapses_in_s)
        return self.look(folder, job)

    def _of(self, folder: JobFolder, job: JobRecord) -> JobLeases:
        if not job.journal:
            return HeartbeatLeases(self.settings, self.clock)
        journal = own_journal(self.settings, self.clock)
        if journal is None or not is_journal_of(journal, job):
            where = "no journal" if journal is None else f"journal {journal.url}"
            return _UnreadableLeases(
                f"job {job.job_id} at {folder.store.url}: its lease is in journal {job.journal}, and this "
                f"process has {where}; set LOCKGATE_JOURNAL_URL to that journal; if it is lost, recovery "
                "waits until the job is old (LOCKGATE_ORPHAN_AGE_S), or abort the job by hand"
            )
        from lockgate.storage_core.commit.leases.journal_leases import JournalLeases  # noqa: PLC0415 - imported just now

        return JournalLeases(journal, self.settings, self.clock)


@dataclass(frozen=True)
class _UnreadableLeases:
    """Leases of a job whose journal is not this process's journal."""

    unread: str

    def take(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> HeldLease:  # noqa: ARG002
        """Drive the job without a lease; other drivers notice this one at the decision only."""
        LOG.warning("%s; the job continues without a lease", self.unread)
        return _Unleased()

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> JobLeaseView:  # noqa: ARG002
        """Return an unknown state with the reason."""
        return JobLeaseView(JobLeaseState.UNKNOWN, unread=self.unread)


class _Unleased:
    """A job that this process drives without a lease."""

    stamp = Stamp()

    def check(self, within_s: float = 0.0) -> None:
        """Do nothing: there is no lease to lose."""

    def suspend(self, timeout_s: float) -> None:
        """Do nothing: there is no lease to suspend."""

    def abandon(self) -> None:
        """Do nothing: there is no lease to renew."""
