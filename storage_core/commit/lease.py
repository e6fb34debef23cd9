"""Who drives a job now. Leases make recovery prompt; they never make a commit safe (rule 5).

`Leases` is the seam that the journal's leases will fill. Until then a lease is a heartbeat object in the
job's folder: renewals overwrite it, whoever comes later takes it with a greater stamp, and who finds another
holder in it is fenced. Two takers in the same instant may both believe they hold it; the decision's
create-if-absent then has one winner.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Final, Protocol, Self

from storage_core.clock import Clock
from storage_core.commit.codec import encode
from storage_core.commit.folder import JobFolder, find
from storage_core.commit.records import LeaseRecord, Stamp
from storage_core.errors import FencedError, LockgateError, MalformedRecordError
from storage_core.failpoints import step
from storage_core.ids import JobAttemptId, Token, new_token
from storage_core.settings import Settings

RENEWER: Final = "lockgate-lease"
"""Name of the thread that renews."""


class LeaseState(StrEnum):
    """What a job's lease says to others."""

    LIVE = "live"
    PARKED = "parked"
    """Between two steps; left alone until its deadline."""
    LAPSED = "lapsed"
    UNKNOWN = "unknown"
    """There is no lease to be read."""


@dataclass(frozen=True)
class Lease:
    """A lease that this process took.

    Attributes:
        stamp: Greater than that of every earlier holder.
        job_attempt: The run of the driver that holds it.
    """

    holder: Token
    stamp: Stamp
    job_attempt: JobAttemptId


@dataclass(frozen=True)
class LeaseView:
    """A job's lease as others see it; without a stamp and a job attempt where there is none to be read."""

    state: LeaseState
    stamp: Stamp | None = None
    job_attempt: JobAttemptId | None = None


class Leases(Protocol):
    """Takes, renews and ends job leases."""

    def take(self, folder: JobFolder, job_attempt: JobAttemptId) -> Lease:
        """Take the lease with a new stamp, from whoever holds it."""

    def renew(self, folder: JobFolder, lease: Lease) -> None:
        """Say that the holder lives.

        Raises:
            FencedError: Another holder has taken it.
        """

    def park(self, folder: JobFolder, lease: Lease, timeout_s: float) -> None:
        """Leave the job to its next step; it lapses after `timeout_s`."""

    def free(self, folder: JobFolder, lease: Lease) -> None:
        """Give the lease back: the job is lapsed at once."""

    def look(self, folder: JobFolder) -> LeaseView:
        """Tell how the job's lease stands."""


@dataclass(frozen=True)
class HeartbeatLeases:
    """Leases as heartbeat objects in the job's folder."""

    clock: Clock
    lapse_s: float

    def take(self, folder: JobFolder, job_attempt: JobAttemptId) -> Lease:
        """Take the lease with a new stamp, from whoever holds it."""
        with step("lease"):
            standing = self._find(folder)
            epoch = standing.stamp.epoch + 1 if standing is not None else 1
            lease = Lease(new_token(), Stamp(epoch, 0), job_attempt)
            self._write(folder, lease, "held", self.lapse_s)
        return lease

    def renew(self, folder: JobFolder, lease: Lease) -> None:
        """Say that the holder lives."""
        with step("lease"):
            self._check(folder, lease)
            self._write(folder, lease, "held", self.lapse_s)

    def park(self, folder: JobFolder, lease: Lease, timeout_s: float) -> None:
        """Leave the job to its next step; it lapses after `timeout_s`."""
        with step("lease"):
            self._check(folder, lease)
            self._write(folder, lease, "parked", timeout_s)

    def free(self, folder: JobFolder, lease: Lease) -> None:
        """Give the lease back: the job is lapsed at once."""
        with step("lease"):
            self._check(folder, lease)
            self._write(folder, lease, "free", 0.0)

    def look(self, folder: JobFolder) -> LeaseView:
        """Tell how the job's lease stands."""
        with step("lease"):
            standing = self._find(folder)
        if standing is None:
            return LeaseView(LeaseState.UNKNOWN)
        if standing.state == "free" or self.clock.now_s() >= standing.deadline_s:
            state = LeaseState.LAPSED
        else:
            state = LeaseState.PARKED if standing.state == "parked" else LeaseState.LIVE
        return LeaseView(state, standing.stamp, standing.job_attempt)

    def _find(self, folder: JobFolder) -> LeaseRecord | None:
        found = find(folder.store, LeaseRecord, folder.key("lease.json"))
        if found is not None and found.job_id != folder.job_id:
            raise MalformedRecordError(f"{folder.key('lease.json')}: field job_id is {found.job_id}")
        return found

    def _check(self, folder: JobFolder, lease: Lease) -> None:
        standing = self._find(folder)
        if standing is None or standing.holder != lease.holder:
            raise FencedError(
                f"job {folder.job_id} at {folder.store.url}: another driver has taken it over; "
                "this one stops and changes nothing more"
            )

    def _write(self, folder: JobFolder, lease: Lease, state: str, lasts_s: float) -> None:
        now_s = self.clock.now_s()
        record = LeaseRecord(
            job_id=folder.job_id,
            job_attempt=lease.job_attempt,
            holder=lease.holder,
            stamp=lease.stamp,
            state=state,  # type: ignore[arg-type]
            renewed_s=now_s,
            deadline_s=now_s + lasts_s,
        )
        folder.store.put(folder.key("lease.json"), encode(record))


def leases_for(settings: Settings, clock: Clock) -> Leases:
    """Return the leases that these settings ask for: heartbeats, until the journal exists."""
    return HeartbeatLeases(clock=clock, lapse_s=settings.lease_lapse_s)


class LeaseKeeper:
    """Holds a job's lease for this process: a thread renews it until it is parked, freed or lost."""

    def __init__(
        self,
        leases: Leases,
        folder: JobFolder,
        job_attempt: JobAttemptId,
        *,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._leases = leases
        self._folder = folder
        self._clock = clock
        self._settings = settings
        self._renewed_s = clock.now_s()
        self.lease = leases.take(folder, job_attempt)
        self._lost: FencedError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_often, name=RENEWER, daemon=True)
        self._thread.start()

    def check(self, within_s: float | None = None) -> None:
        """Raise if the lease is lost; renew it now unless it was renewed within `within_s`.

        Raises:
            FencedError: Another driver has taken the job over.
        """
        if self._lost is not None:
            raise self._lost
        if within_s is None or self._clock.now_s() - self._renewed_s >= within_s:
            self._renew()

    def park(self, timeout_s: float) -> None:
        """Stop renewing and leave the job to its next step."""
        self._stop()
        self._leases.park(self._folder, self.lease, timeout_s)

    def free(self) -> None:
        """Stop renewing and give the lease back."""
        self._stop()
        self._leases.free(self._folder, self.lease)

    def abandon(self) -> None:
        """Stop renewing and let the lease lapse, as a crash would."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        began_s = self._clock.now_s()  # before the call: a slow answer must not make the lease look younger
        self._leases.renew(self._folder, self.lease)
        self._renewed_s = began_s

    def _renew_often(self) -> None:
        while not self._clock.wait(self._ended, self._settings.lease_renew_s):
            try:
                self._renew()
            except FencedError as error:
                self._lost = error
                return
            except LockgateError:
                continue  # the next renewal may pass; if none does, the lease lapses and others see it
