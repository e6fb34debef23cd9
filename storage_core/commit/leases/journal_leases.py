"""Leases in the job's journal: prompt, stamped by entries, renewed for all jobs of a process at once.

The job's folder gets `lease.json`, once: as long as an ended job has it, its clean-up is unfinished, which
recovery and sweep see from a listing alone. How the lease stands, only the journal says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core import journal as journals
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.location import canonical_url, symlinked_url
from lockgate.storage_core.commit.leases.protocol import JobLeaseState, JobLeaseView
from lockgate.storage_core.commit.leases.registry import (
    end_of_link,
    job_mutation,
    refuse_unsubmitted,
    submission,
    warn_untold,
)
from lockgate.storage_core.commit.records.job import JobRecord, LeaseRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder, claim
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import FencedError, JournalUnavailableError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, Token, job_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.entries.leases import TakeLease
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

SEEN_AS: Final[Mapping[journals.LeaseState, JobLeaseState]] = {
    journals.LeaseState.HELD: JobLeaseState.LIVE,
    journals.LeaseState.SOFT: JobLeaseState.LIVE,
    journals.LeaseState.RECOVERING: JobLeaseState.LIVE,
    journals.LeaseState.PARKED: JobLeaseState.PARKED,
    journals.LeaseState.HARD: JobLeaseState.LAPSED,
    journals.LeaseState.FREE: JobLeaseState.LAPSED,
}
"""What a lease in the journal says to the commit protocol."""


@dataclass(frozen=True)
class JournalLeases:
    """The leases of jobs whose `job.json` names this journal."""

    journal: Journal
    settings: Settings
    clock: Clock

    def hold(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> JournalHold:
        """Take the lease with a new stamp, from whoever holds it, and renew it from now on.

        In the same transaction the registry is told, and what was uploaded for the job becomes its own.

        Raises:
            ArtefactsGoneError: That is not there any more; the lease is not renewed.
        """
        driven = _DRIVEN.under(self.journal, self.settings, self.clock)
        resource = job_resource(canonical_url(folder.store), folder.job_id)
        take = TakeLease(
            resource=resource,
            holder=driven.holder,
            purpose="take over",
            soft_s=min(self.settings.lease_soft_s, self.settings.lease_hard_s),
            hard_s=self.settings.lease_hard_s,
            detail=job_attempt,
        )
        with step("lease"):
            began_s = self.clock.now_s()
            registered = job_mutation(folder, job, JobPhase.OPEN, job_attempt)
            submitting = submission(folder, job, job_attempt)
            taken, told, *rest = self.journal.write(
                [Mutation(op=take), registered, *submitting, *end_of_link(self.journal, folder)]
            )
            if isinstance(taken, Refused):
                raise taken.error
            if isinstance(told, Refused):
                warn_untold(folder, told.error)
            refuse_unsubmitted(folder, rest[: len(submitting)])
            _note(folder, job_attempt, Token(driven.holder), taken.stamp, self.clock)
            driven.drive(resource, taken.stamp, since_s=began_s)
        return JournalHold(driven, resource, taken.stamp)

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> JobLeaseView:  # noqa: ARG002 - of the seam
        """Tell how the job's lease stands; a journal that cannot be reached does not tell."""
        try:
            with step("lease"):
                view = look_at(self.journal, folder)
        except JournalUnavailableError as error:
            return JobLeaseView(JobLeaseState.UNKNOWN, unread=str(error))
        if view is None:
            return JobLeaseView(JobLeaseState.UNKNOWN)
        return JobLeaseView(SEEN_AS[view.state], view.lease.stamp, JobAttemptId(view.lease.detail) or None)


def look_at(journal: Journal, folder: JobFolder) -> journals.LeaseView | None:
    """Return how a job's lease stands in a journal, None if nobody ever took it."""
    leases, link = journals.Leases(journal), symlinked_url(folder.store)
    view = leases.look(job_resource(canonical_url(folder.store), folder.job_id))
    return leases.look(job_resource(link, folder.job_id)) if view is None and link is not None else view


class JournalHold:
    """A lease that this process took; the process's one renewal renews it with its others."""

    def __init__(self, driven: _Driven, resource: str, stamp: Stamp) -> None:
        self.stamp = stamp
        self._driven = driven
        self._resource = resource

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the lease is lost; renew it now unless it was renewed within `within_s`."""
        with step("lease"):
            self._driven.check(self._resource, self.stamp, within_s)

    def park(self, timeout_s: float) -> None:
        """Stop renewing and leave the job to its next step; it lapses after `timeout_s`."""
        self.abandon()
        with step("lease"):
            self._driven.leases.park(self._resource, self.stamp, timeout_s)

    def abandon(self) -> None:
        """Stop renewing and let the lease lapse, as a crash would."""
        self._driven.leave(self._resource, self.stamp)


class _Driven:
    """The jobs that this process drives under one journal, each by its newest lease."""

    def __init__(self, journal: Journal, *, every_s: float, clock: Clock) -> None:
        self.leases = journals.Leases(journal)
        self._renewer = Renewer(self.leases, every_s=every_s, clock=clock)
        self._newest: dict[str, Stamp] = {}
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Let a fork that closes what is its parent's wait for none of its parent's threads."""
        self._changing = threading.Lock()

    @property
    def holder(self) -> str:
        """In whose name its leases are taken."""
        return self._renewer.holder

    def drive(self, resource: str, stamp: Stamp, *, since_s: float) -> None:
        """Renew a lease from now on, unless this process has taken a newer one meanwhile."""
        with self._changing:
            if stamp > self._newest.get(resource, Stamp()):
                self._newest[resource] = stamp
                self._renewer.keep(resource, stamp, since_s=since_s)

    def check(self, resource: str, stamp: Stamp, within_s: float) -> None:
        newest = self._newest.get(resource)
        if newest != stamp:
            raise FencedError(
                f"{resource}: the lease taken with stamp {stamp} is lost: this process has taken it anew, or "
                "given it up; stop, and change nothing more"
            )
        self._renewer.check(resource, within_s)

    def leave(self, resource: str, stamp: Stamp) -> None:
        """Renew it no more."""
        with self._changing:
            if self._newest.get(resource) == stamp:
                del self._newest[resource]
                self._renewer.drop(resource)


class _DrivenJobs:
    """What this process drives, by journal."""

    def __init__(self) -> None:
        self._by_journal: dict[tuple[Journal, float], _Driven] = {}
        self._opening = threading.Lock()

    def after_fork_in_child(self) -> None:
        """Begin with nothing: the parent's jobs, and its thread that renews, are not here."""
        for driven in self._by_journal.values():
            driven.after_fork_in_child()
        self._by_journal = {}
        self._opening = threading.Lock()

    def under(self, journal: Journal, settings: Settings, clock: Clock) -> _Driven:
        key = (journal, settings.lease_renew_s)
        with self._opening:
            if key not in self._by_journal:
                self._by_journal[key] = _Driven(journal, every_s=settings.lease_renew_s, clock=clock)
            return self._by_journal[key]


_DRIVEN: Final = _DrivenJobs()
os.register_at_fork(after_in_child=_DRIVEN.after_fork_in_child)


def _note(folder: JobFolder, job_attempt: JobAttemptId, holder: Token, stamp: Stamp, clock: Clock) -> None:
    now_s = clock.now_s()
    record = LeaseRecord(
        job_id=folder.job_id,
        job_attempt=job_attempt,
        holder=holder,
        stamp=stamp,
        state="journal",
        renewed_s=now_s,
        deadline_s=now_s,
    )
    claim(folder.store, folder.key("lease.json"), record)
