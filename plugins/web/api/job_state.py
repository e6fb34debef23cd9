"""What is known about a job by its store and by the registry, as one state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lockgate.plugins.web.access import Stopped
from lockgate.storage_core.commit.job_view import JobRecords, TaskCount
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.job_record import OnLapse
from lockgate.storage_core.commit.records.log_records import Receipt
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.registry.rows import Job

_SHOWN_PHASES: Final = {
    "open": JobPhase.OPEN,
    "committing": JobPhase.DECIDED,
    "aborting": JobPhase.ABORTING,
    "committed": JobPhase.COMMITTED,
    "failed": JobPhase.FAILED,
}
"""Phase that is shown for a phase of the registry, while the store does not answer."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """What is known about a job.

    Attributes:
        records: Records in the store; None if it did not answer.
        registered: Row of the registry; None if it has none.
        lease: State of the lease; None for an ended job that has none.
        lease_until_s: When the lease ends, by the clock, if it is not renewed.
        is_recovering: Whether a recovery has the lease.
        tasks: Progress of the tasks; None if it is unknown.
        recovery_minutes: Interval of the recovery.
        stopped: Why recovery does not run here, with the remedy; None if it does.
    """

    records: JobRecords | None
    registered: Job | None
    lease: JobLeaseState | None
    lease_until_s: float | None
    is_recovering: bool
    tasks: TaskCount | None
    recovery_minutes: float
    now_s: float
    stopped: Stopped | None = None

    @property
    def phase(self) -> JobPhase | None:
        """Phase by the store, else by the registry; None if it cannot be read."""
        if self.records is not None:
            return self.records.phase
        return None if self.registered is None else _SHOWN_PHASES[self.registered.phase]

    @property
    def is_partly_deleted(self) -> bool:
        """Whether a crash interrupted the deletion of the old job's folder."""
        return self.records is not None and self.records.is_partly_deleted

    @property
    def created_s(self) -> float | None:
        """Time of the set-up."""
        if self.records is not None and self.records.record is not None:
            return self.records.record.created_s
        return None if self.registered is None else self.registered.set_up_s

    @property
    def decided_s(self) -> float | None:
        """Time of the decision."""
        decision = self.records and self.records.decision
        return decision.decided_s if decision else None

    @property
    def published_s(self) -> float | None:
        """Time of the turn's outcome."""
        return None if self.receipt is None else self.receipt.published_s

    @property
    def receipt(self) -> Receipt | None:
        """Receipt of the publication; that of the ended job says which tables are behind, too."""
        if self.records is None:
            return None
        markers = (self.records.ended, self.records.outcome)
        return next((marker.receipt for marker in markers if marker and marker.receipt), None)

    @property
    def ended_s(self) -> float | None:
        """Time of the terminal marker."""
        if self.records is not None:
            return self.records.ended.ended_s if self.records.ended else None
        return None if self.registered is None else self.registered.ended_s

    @property
    def reason(self) -> str:
        """Reason of an abort, a quarantine or a failure."""
        if self.records is None:
            return ""
        for marker in (self.records.ended, self.records.outcome, self.records.decision):
            if marker is not None and marker.reason:
                return marker.reason
        return ""

    @property
    def on_lapse(self) -> OnLapse:
        """What recovery does with the undecided job if its driver is gone."""
        record = self.records and self.records.record
        return record.spec.on_lapse if record else "abort"

    def left(self, result: str) -> int:
        """Return how many uploads (`left`) or replaced files (`undeleted`) the ended job could not delete."""
        if self.records is None or self.records.lease is None:
            return 0  # an ended job without it is cleaned up
        report = self.records.report
        return report.counts.get(result, 0) if report else 0

    def at(self, seconds: float | None) -> str:
        """Return ` at 03:12 UTC`, with the date if it is not today's; empty if the time is unknown."""
        if seconds is None:
            return ""
        moment, now = (datetime.fromtimestamp(each, tz=UTC) for each in (seconds, self.now_s))
        return (
            f" at {moment:%H:%M UTC}"
            if moment.date() == now.date()
            else f" on {moment:%Y-%m-%d at %H:%M UTC}"
        )

    @property
    def progress(self) -> str:
        """Progress of the tasks as a sentence; empty if it is unknown."""
        if self.tasks is None:
            return ""
        if self.tasks.expected is None:
            number = self.tasks.committed
            more = "; it is not known how many will" if self.phase is JobPhase.OPEN else ""
            return f"{number} task{'' if number == 1 else 's'} committed{more}."
        return f"{self.tasks.committed} of {self.tasks.text} tasks have committed."
