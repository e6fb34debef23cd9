"""Leases in the job's journal, renewed for all jobs of a process together.

`lease.json` is written to the job's folder once. An ended job that still has it is not cleaned up, which
recovery and sweep see from a listing. Only the journal has the state of the lease.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core import journal as journals
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState, JobLeaseView
from lockgate.storage_core.commit.leases.registration import (
    job_mutation,
    record_job,
    refuse_unsubmitted,
    releases,
    submission,
    under,
    warn_unregistered,
)
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.create_if_absent import retry_while_busy
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord, LeaseRecord
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    FencedError,
    JournalUnavailableError,
    OutcomeUnknownError,
    StateLostError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, Token, job_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.open_store import canonical_url

SEEN_AS: Final[Mapping[journals.LeaseState, JobLeaseState]] = {
    journals.LeaseState.HELD: JobLeaseState.LIVE,
    journals.LeaseState.SOFT: JobLeaseState.LIVE,
    journals.LeaseState.RECOVERING: JobLeaseState.LIVE,
    journals.LeaseState.SUSPENDED: JobLeaseState.SUSPENDED,
    journals.LeaseState.HARD: JobLeaseState.OVERDUE,
    journals.LeaseState.FREE: JobLeaseState.LAPSED,
}
"""State of a lease by the journal's clock, as the commit protocol sees it."""


@dataclass(frozen=True)
class JournalLeases:
    """The leases of jobs whose `job.json` names this journal."""

    journal: Journal
    settings: Settings
    clock: Clock

    def take(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> HeldJournalLease:
        """Take the lease from its holder with a new stamp, and keep renewing it.

        The same transaction registers the job and assigns the first page of its uploaded artefacts to it.
        Each further page, and each page of what a replaced driver leaves, has a transaction of its own.

        Raises:
            ArtefactsGoneError: The artefacts are gone; the lease is not renewed.
            FencedError: Another driver took the lease meanwhile, so nothing of what it took was released.
        """
        held = _HELD.under(self.journal, self.settings, self.clock)
        resource = job_resource(canonical_url(folder.store), folder.job_id)
        take = TakeLease(
            resource=resource,
            holder=held.holder,
            purpose="take over",
            soft_s=min(self.settings.lease_soft_s, self.settings.lease_hard_s),
            hard_s=self.settings.lease_hard_s,
            detail=job_attempt,
        )
        with step("lease"):
            began_s = self.clock.monotonic_s()
            register = job_mutation(folder, job, JobPhase.OPEN, job_attempt)
            submit = submission(folder, job, job_attempt)
            released = releases(self.journal, record_job(folder, job, JobPhase.OPEN, job_attempt))
            record = [register, *submit[:1]]
            taken, *rest = self.journal.write([Mutation(op=take), *([] if released else record)])
            if isinstance(taken, Refused):
                raise taken.error
            lease = HeldJournalLease(held, resource, taken.stamp)
            try:
                held.keep(resource, taken.stamp, since_s=began_s)
                for release in released:  # other writers need not wait for all
                    (outcome,) = self.journal.write([under(release, taken.stamp)])
                    if isinstance(outcome, Refused):
                        raise outcome.error
                if released:
                    registered, *rest = self.journal.write([under(register, taken.stamp), *record[1:]])
                else:
                    registered, *rest = rest
                if isinstance(registered, Refused):
                    if isinstance(registered.error, FencedError):
                        raise registered.error
                    warn_unregistered(folder, registered.error)
                refuse_unsubmitted(folder, job, rest[: len(submit[:1])])
                for number, page in enumerate(submit[1:], start=1):
                    refuse_unsubmitted(folder, job, self.journal.write([page]), page=number)
                _create_record(folder, job_attempt, Token(held.holder), taken.stamp, self.clock)
            except BaseException:
                lease.abandon()
                raise
        return lease

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> JobLeaseView:  # noqa: ARG002 - of the protocol
        """Return the state of the job's lease; unknown if the journal cannot be reached."""
        try:
            with step("lease"):
                view = look_at(self.journal, folder)
        except (JournalUnavailableError, StateLostError) as error:
            return JobLeaseView(JobLeaseState.UNKNOWN, unread=str(error))
        if view is None:
            return JobLeaseView(JobLeaseState.UNKNOWN)
        state = SEEN_AS[view.state]
        if view.is_overdue or not view.lapses_in_s:
            state = JobLeaseState.OVERDUE if view.lapses_in_s else JobLeaseState.LAPSED
        attempt = JobAttemptId(view.lease.detail) or None
        return JobLeaseView(state, view.lease.stamp, attempt, lapses_in_s=view.lapses_in_s)


def look_at(journal: Journal, folder: JobFolder) -> journals.LeaseView | None:
    """Return the state of a job's lease in a journal, or None if it was never taken."""
    return journals.Leases(journal).look(job_resource(canonical_url(folder.store), folder.job_id))


class HeldJournalLease:
    """A lease that this process took, renewed together with its other leases."""

    def __init__(self, held: _HeldLeases, resource: str, stamp: Stamp) -> None:
        self.stamp = stamp
        self._held = held
        self._resource = resource

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the lease is lost; renew it unless it was renewed within `within_s`."""
        with step("lease"):
            self._held.check(self._resource, self.stamp, within_s)

    def suspend(self, timeout_s: float) -> None:
        """Stop renewing and leave the job to its next step; it lapses after `timeout_s`."""
        self.abandon()
        with step("lease"):
            self._held.leases.suspend(self._resource, self.stamp, timeout_s)

    def abandon(self) -> None:
        """Stop renewing and let the lease lapse, as a crash would."""
        self._held.drop(self._resource, self.stamp)


class _HeldLeases:
    """The newest lease of each job that this process drives under one journal."""

    def __init__(self, journal: Journal, *, every_s: float, clock: Clock) -> None:
        self.leases = journals.Leases(journal)
        self._renewer = Renewer(self.leases.renew, every_s=every_s, clock=clock)
        self._newest: dict[str, Stamp] = {}
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread of the parent may have held at the fork."""
        self._changing = threading.Lock()

    @property
    def holder(self) -> str:
        """Holder of these leases."""
        return self._renewer.holder

    def keep(self, resource: str, stamp: Stamp, *, since_s: float) -> None:
        """Renew a lease from now on, unless this process has taken a newer one."""
        with self._changing:
            if stamp > self._newest.get(resource, Stamp()):
                self._newest[resource] = stamp
                self._renewer.keep(resource, stamp, since_s=since_s)

    def check(self, resource: str, stamp: Stamp, within_s: float) -> None:
        newest = self._newest.get(resource)
        if newest != stamp:
            raise FencedError(
                f"{resource}: the lease taken with stamp {stamp} is lost: this process has taken it again, "
                "or released it; stop, and change nothing more"
            )
        self._renewer.check(resource, within_s)

    def drop(self, resource: str, stamp: Stamp) -> None:
        """Stop renewing a lease."""
        with self._changing:
            if self._newest.get(resource) == stamp:
                del self._newest[resource]
                self._renewer.drop(resource)


class _HeldByJournal:
    """The leases of this process, by journal and renewal interval."""

    def __init__(self) -> None:
        self._by_journal: dict[tuple[Journal, float], _HeldLeases] = {}
        self._opening = threading.Lock()

    def after_fork_in_child(self) -> None:
        """Start empty: the parent's leases and the thread that renews them do not belong to the child."""
        for held in self._by_journal.values():
            held.after_fork_in_child()
        self._by_journal = {}
        self._opening = threading.Lock()

    def under(self, journal: Journal, settings: Settings, clock: Clock) -> _HeldLeases:
        key = (journal, settings.lease_renew_s)
        with self._opening:
            if key not in self._by_journal:
                self._by_journal[key] = _HeldLeases(journal, every_s=settings.lease_renew_s, clock=clock)
            return self._by_journal[key]


_HELD: Final = _HeldByJournal()
os.register_at_fork(after_in_child=_HELD.after_fork_in_child)


def _create_record(
    folder: JobFolder, job_attempt: JobAttemptId, holder: Token, stamp: Stamp, clock: Clock
) -> None:
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
    with suppress(AlreadyExistsError):  # it is enough that there is one: its content is for people
        retry_while_busy(OutcomeUnknownError).call(
            folder.store.create, folder.key("lease.json"), encode(record)
        )
