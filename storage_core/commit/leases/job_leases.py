"""Where each job's leases are: in the journal that its `job.json` names, or in its folder.

A process whose own journal is another one sees the lease as unknown, and may all the same write, commit and
recover the job: it is safe with nothing but the store.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.heartbeat import HeartbeatLeases
from lockgate.storage_core.commit.leases.protocol import Hold, Leases, LeaseState, LeaseView
from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.ids import JobAttemptId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

if TYPE_CHECKING:
    from lockgate.storage_core.journal import Journal

LOG: Final = logging.getLogger("lockgate.lease")


def own_journal(settings: Settings, clock: Clock) -> Journal | None:
    """Return the journal of this process, None if it has none.

    Raises:
        JournalUnavailableError: It cannot be reached.
    """
    if not settings.has_journal:
        return None
    from lockgate.storage_core.journal.process_journal import configured_journal  # noqa: PLC0415 - half a second, and ours

    return configured_journal(settings, clock)


def journal_for_job(settings: Settings, clock: Clock) -> str:
    """Return what a new job's record says of its journal: who it is and where, without a password.

    Raises:
        JournalUnavailableError: It cannot be reached now, so no job can be set up.
    """
    journal = own_journal(settings, clock)
    if journal is None:
        return ""
    return f"{journal.status().identity}@{journal.url}#{journal.name}"


def is_journal_of(journal: Journal, job: JobRecord) -> bool:
    """Tell whether a job's leases are in this journal."""
    return job.journal.partition("@")[0] == journal.identity


@dataclass(frozen=True)
class JobLeases:
    """The leases of jobs, wherever each job's are."""

    settings: Settings
    clock: Clock

    def hold(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> Hold:
        """Take the lease with a new stamp, from whoever holds it, and renew it from now on."""
        return self._of(folder, job).hold(folder, job, job_attempt)

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> LeaseView:
        """Tell how the job's lease stands."""
        job = job or folder.job()
        try:
            leases = self._of(folder, job)
        except JournalUnavailableError as error:
            return LeaseView(LeaseState.UNKNOWN, unread=str(error))
        return leases.look(folder, job)

    def _of(self, folder: JobFolder, job: JobRecord) -> Leases:
        if not job.journal:
            return HeartbeatLeases(self.settings, self.clock)
        journal = own_journal(self.settings, self.clock)
        if journal is None or not is_journal_of(journal, job):
            where = "no journal" if journal is None else f"journal {journal.url}"
            return _LeasesElsewhere(
                f"job {job.job_id} at {folder.store.url}: its lease is in journal {job.journal}, and this "
                f"process has {where}; set LOCKGATE_JOURNAL_URL to that journal; where it is lost, recovery "
                "waits until the job is old (LOCKGATE_ORPHAN_AGE_S), or abort the job by hand"
            )
        from lockgate.storage_core.commit.leases.journal_leases import JournalLeases  # noqa: PLC0415 - imported just now

        return JournalLeases(journal, self.settings, self.clock)


@dataclass(frozen=True)
class _LeasesElsewhere:
    """Of a job whose journal is another one than this process's."""

    unread: str

    def hold(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> Hold:  # noqa: ARG002
        """Drive the job without a lease: other drivers learn of it no sooner than at the decision."""
        LOG.warning("%s; the job goes on without a lease", self.unread)
        return _Unleased()

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> LeaseView:  # noqa: ARG002
        """Say that it cannot be told."""
        return LeaseView(LeaseState.UNKNOWN, unread=self.unread)


class _Unleased:
    """A job that this process drives without a lease."""

    stamp = Stamp()

    def check(self, within_s: float = 0.0) -> None:
        """Nothing can be lost."""

    def park(self, timeout_s: float) -> None:
        """Nothing can be left to the next step."""

    def abandon(self) -> None:
        """Nothing is renewed."""
