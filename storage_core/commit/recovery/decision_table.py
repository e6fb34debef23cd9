"""The table of what recovery does with a job in each phase and state of its lease.

A job whose markers contradict each other or cannot be read has no phase and no row: nothing may be changed.
Source: commit protocol, "Recovery". The protocol's model (`tests/model/commit`) uses the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.job_record import OnLapse
from lockgate.storage_core.commit.records.phase import TERMINAL, UNDECIDED, JobPhase


class RecoveryAction(StrEnum):
    """What recovery does with a job."""

    LEAVE = "leave alone"
    ABORT = "abort"
    RESUME = "resume"
    ROLL_FORWARD = "roll forward"
    CLEAN_UP = "clean up"
    REFUSE = "touch nothing"


class RecoveryRow(NamedTuple):
    """One row of the table; exactly one matches each situation.

    Attributes:
        phases: Phases of the job.
        leases: States of its lease.
        young: Whether anything in its folder is younger than `orphan_age_s`; None if that is irrelevant.
        on_lapse: The job's option `on_lapse`; None if that is irrelevant.
        why: Reason, for people.
    """

    phases: frozenset[JobPhase]
    leases: frozenset[JobLeaseState]
    young: bool | None
    on_lapse: OnLapse | None
    action: RecoveryAction
    why: str


_ANY: Final = frozenset(JobLeaseState)
_ASIDE: Final = frozenset({JobPhase.QUARANTINED})
_DECIDED: Final = frozenset(JobPhase) - UNDECIDED - TERMINAL - _ASIDE
_LIVE, _SUSPENDED = frozenset({JobLeaseState.LIVE}), frozenset({JobLeaseState.SUSPENDED})
_OVERDUE: Final = frozenset({JobLeaseState.OVERDUE})
_LAPSED, _UNKNOWN = frozenset({JobLeaseState.LAPSED}), frozenset({JobLeaseState.UNKNOWN})
_AT_WORK: Final = "its driver is alive, or another recovery has its lease"
_RENEWED: Final = "its lease was renewed while recovery watched: its driver is alive, and a clock has jumped"
_GONE: Final = "its driver is gone"
_RESUMED: Final = f"{_GONE}; its option on_lapse is resume"

RECOVERY: Final = (
    RecoveryRow(UNDECIDED, _LIVE, None, None, RecoveryAction.LEAVE, _AT_WORK),
    RecoveryRow(UNDECIDED, _SUSPENDED, None, None, RecoveryAction.LEAVE, "it waits for its next step"),
    RecoveryRow(UNDECIDED, _OVERDUE, None, None, RecoveryAction.LEAVE, _RENEWED),
    RecoveryRow(UNDECIDED, _LAPSED, None, "abort", RecoveryAction.ABORT, _GONE),
    RecoveryRow(UNDECIDED, _LAPSED, None, "resume", RecoveryAction.RESUME, _RESUMED),
    RecoveryRow(
        UNDECIDED, _UNKNOWN, True, None, RecoveryAction.LEAVE, "its lease cannot be read and it is not old"
    ),
    RecoveryRow(UNDECIDED, _UNKNOWN, False, "abort", RecoveryAction.ABORT, _GONE),
    RecoveryRow(UNDECIDED, _UNKNOWN, False, "resume", RecoveryAction.RESUME, _RESUMED),
    RecoveryRow(_DECIDED, _ANY, None, None, RecoveryAction.ROLL_FORWARD, "its decision is final"),
    RecoveryRow(_ASIDE, _ANY, None, None, RecoveryAction.LEAVE, "an operator has quarantined it"),
    RecoveryRow(TERMINAL, _ANY, None, None, RecoveryAction.CLEAN_UP, "it has ended"),
)


def choose_action(
    phase: JobPhase, lease: JobLeaseState, *, on_lapse: OnLapse, is_young: Callable[[], bool]
) -> tuple[RecoveryAction, str]:
    """Return what recovery does with a job, and the reason.

    Args:
        phase: Phase of the job.
        lease: State of its lease.
        on_lapse: The job's option `on_lapse`.
        is_young: Returns whether the folder is young. Called at most once, because it costs a listing.
    """
    young = cache(is_young)
    for row in RECOVERY:
        if (
            phase in row.phases
            and lease in row.leases
            and row.on_lapse in {None, on_lapse}
            and (row.young is None or row.young is young())
        ):
            return row.action, row.why
    raise AssertionError((phase, lease, on_lapse))
