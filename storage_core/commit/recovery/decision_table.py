"""What is found decides what is done: recovery's choice, as a table.

A job whose markers contradict each other or cannot be read has no phase, so no row: nothing may be touched.
Source: commit protocol, "Recovery". The protocol's model (`tests/model`) recovers by this same table.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

from lockgate.storage_core.commit.leases.protocol import LeaseState
from lockgate.storage_core.commit.records.job import OnLapse
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
    """One row; each situation meets exactly one.

    Attributes:
        phases: Where the job stands.
        leases: What its lease says.
        young: Whether anything in its folder is younger than `orphan_age_s`; None: it is not asked.
        on_lapse: The job's own policy; None: it does not count.
        why: For people; `{phase}` stands for the phase.
    """

    phases: frozenset[JobPhase]
    leases: frozenset[LeaseState]
    young: bool | None
    on_lapse: OnLapse | None
    action: RecoveryAction
    why: str


_ANY: Final = frozenset(LeaseState)
_DECIDED: Final = frozenset(JobPhase) - UNDECIDED - TERMINAL
_LIVE, _PARKED = frozenset({LeaseState.LIVE}), frozenset({LeaseState.PARKED})
_LAPSED, _UNKNOWN = frozenset({LeaseState.LAPSED}), frozenset({LeaseState.UNKNOWN})
_AT_WORK: Final = "its driver lives, or another recovery is at it"
_GONE: Final = "its driver is gone"
_RESUMED: Final = f"{_GONE}; its policy is to resume"

RECOVERY: Final = (
    RecoveryRow(UNDECIDED, _LIVE, None, None, RecoveryAction.LEAVE, _AT_WORK),
    RecoveryRow(UNDECIDED, _PARKED, None, None, RecoveryAction.LEAVE, "it waits for its next step"),
    RecoveryRow(UNDECIDED, _LAPSED, None, "abort", RecoveryAction.ABORT, _GONE),
    RecoveryRow(UNDECIDED, _LAPSED, None, "resume", RecoveryAction.RESUME, _RESUMED),
    RecoveryRow(
        UNDECIDED, _UNKNOWN, True, None, RecoveryAction.LEAVE, "its lease cannot be read and it is not old"
    ),
    RecoveryRow(UNDECIDED, _UNKNOWN, False, "abort", RecoveryAction.ABORT, _GONE),
    RecoveryRow(UNDECIDED, _UNKNOWN, False, "resume", RecoveryAction.RESUME, _RESUMED),
    RecoveryRow(_DECIDED, _ANY, None, None, RecoveryAction.ROLL_FORWARD, "it is decided ({phase})"),
    RecoveryRow(TERMINAL, _ANY, None, None, RecoveryAction.CLEAN_UP, "it has ended"),
)


def choose_action(
    found: JobPhase, lease: LeaseState, *, on_lapse: OnLapse, is_young: Callable[[], bool]
) -> tuple[RecoveryAction, str]:
    """Return what recovery does with a job, and why.

    Args:
        found: Where the job stands.
        lease: What its lease says.
        on_lapse: The job's own policy.
        is_young: Asked once, and only where a row depends on it, for the answer costs a listing.
    """
    young = cache(is_young)
    for row in RECOVERY:
        if (
            found in row.phases
            and lease in row.leases
            and row.on_lapse in {None, on_lapse}
            and (row.young is None or row.young is young())
        ):
            return row.action, row.why.format(phase=found)
    raise AssertionError((found, lease, on_lapse))
