"""Leases without a journal: heartbeat objects in the job's folder.

A renewal overwrites the object, and a new driver takes it over with a greater stamp. A driver that finds
another holder in it is fenced. Two drivers that take it in the same instant may both believe they hold it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Literal

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState, JobLeaseView
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord, LeaseRecord
from lockgate.storage_core.errors import FencedError, LockgateError, MalformedRecordError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, Token, new_token
from lockgate.storage_core.lease_watch import LEASE_WATCH
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

RENEWER: Final = "lockgate-heartbeat"
"""Name of the thread that renews one job's lease."""


@dataclass(frozen=True)
class HeartbeatLeases:
    """Leases as heartbeat objects in the jobs' folders."""

    settings: Settings
    clock: Clock

    def take(self, folder: JobFolder, job: JobRecord, job_attempt: JobAttemptId) -> Heartbeat:  # noqa: ARG002
        """Take the lease from its holder with a new stamp, and keep renewing it."""
        with step("lease"):
            current = _find(folder)
            epoch = current.stamp.epoch + 1 if current is not None else 1
            return Heartbeat(folder, job_attempt, Stamp(epoch, 0), settings=self.settings, clock=self.clock)

    def look(self, folder: JobFolder, job: JobRecord | None = None) -> JobLeaseView:  # noqa: ARG002
        """Return the state of the job's lease."""
        with step("lease"):
            current = _find(folder)
        if current is None:
            return JobLeaseView(JobLeaseState.UNKNOWN)
        state = JobLeaseState.SUSPENDED if current.state == "suspended" else JobLeaseState.LIVE
        lapses_in_s = self._lapses_in_s(folder, current)
        if self._is_overdue(current) or not lapses_in_s:
            state = JobLeaseState.OVERDUE if lapses_in_s else JobLeaseState.LAPSED
        return JobLeaseView(state, current.stamp, current.job_attempt, lapses_in_s=lapses_in_s)

    def _is_overdue(self, record: LeaseRecord) -> bool:
        """Return whether the lease may have lapsed, by wall clocks that may differ or have jumped."""
        now_s = self.clock.now_s()
        is_future = record.state == "live" and now_s < 2 * record.renewed_s - record.deadline_s
        return is_future or now_s >= record.deadline_s

    def _lapses_in_s(self, folder: JobFolder, record: LeaseRecord) -> float:
        if record.state == "suspended":  # it is not renewed, and its deadline is a time of day
            return max(0.0, record.deadline_s - self.clock.now_s())
        name = f"{folder.store.url}#{folder.job_id}"
        renewal = (record.holder, record.state, record.renewed_s)
        unrenewed_s = LEASE_WATCH.unrenewed_s(name, renewal, self.clock.monotonic_s())
        return max(0.0, record.deadline_s - record.renewed_s - unrenewed_s)


class Heartbeat:
    """A lease that this process took. A thread renews it until it is suspended, abandoned or lost."""

    def __init__(
        self,
        folder: JobFolder,
        job_attempt: JobAttemptId,
        stamp: Stamp,
        *,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self.stamp = stamp
        self._holder: Token = new_token()
        self._folder = folder
        self._job_attempt = job_attempt
        self._settings = settings
        self._clock = clock
        self._renewed_s = clock.monotonic_s()
        self._write("live", settings.lease_hard_s)
        self._lost: FencedError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_often, name=RENEWER, daemon=True)
        self._thread.start()

    def check(self, within_s: float = 0.0) -> None:
        """Raise if the lease is lost; renew it unless it was renewed within `within_s`."""
        if self._lost is not None:
            raise self._lost
        if self._clock.monotonic_s() - self._renewed_s >= within_s:
            self._renew()

    def suspend(self, timeout_s: float) -> None:
        """Stop renewing and leave the job to its next step; it lapses after `timeout_s`."""
        self.abandon()
        with step("lease"):
            self._check_holder()
            self._write("suspended", timeout_s)

    def abandon(self) -> None:
        """Stop renewing and let the lease lapse, as a crash would."""
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        began_s = self._clock.monotonic_s()  # before the call: a slow answer must not extend the lease
        with step("lease"):
            self._check_holder()
            self._write("live", self._settings.lease_hard_s)
        self._renewed_s = began_s

    def _renew_often(self) -> None:
        while not self._clock.wait(self._ended, self._settings.lease_renew_s):
            try:
                self._renew()
            except FencedError as error:
                self._lost = error
                return
            except LockgateError:
                continue  # the next renewal may succeed; if none does, the lease lapses for all to see

    def _check_holder(self) -> None:
        current = _find(self._folder)
        if current is None or current.holder != self._holder:
            raise FencedError(
                f"job {self._folder.job_id} at {self._folder.store.url}: another driver has taken it over; "
                "this one stops and changes nothing more"
            )

    def _write(self, state: Literal["live", "suspended"], lasts_s: float) -> None:
        now_s = self._clock.now_s()
        record = LeaseRecord(
            job_id=self._folder.job_id,
            job_attempt=self._job_attempt,
            holder=self._holder,
            stamp=self.stamp,
            state=state,
            renewed_s=now_s,
            deadline_s=now_s + lasts_s,
        )
        self._folder.store.put(self._folder.key("lease.json"), encode(record))


def _find(folder: JobFolder) -> LeaseRecord | None:
    found = find(folder.store, LeaseRecord, folder.key("lease.json"))
    if found is not None and found.job_id != folder.job_id:
        raise MalformedRecordError(f"{folder.key('lease.json')}: field job_id is {found.job_id}")
    return found
