"""Phase of a job, derived from its markers: COMMIT_STARTED, COMMIT_SUCCESS, COMMIT_FAIL.

A marker is a record that is created once. A phase is never stored, so that every process sees the same. The
table of transitions is the state machine of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.errors import ConflictError, MalformedRecordError


class JobPhase(StrEnum):
    """Phase of a job."""

    OPEN = "open"
    """Undecided: everything can still be undone."""
    DECIDED = "decided"
    """`COMMIT_STARTED` has the verdict commit; the turn has no outcome yet. The job can only go forward."""
    PUBLISHED = "published"
    """Manifest readers see the job; replaced files and markers remain to be handled."""
    COMMITTED = "committed"
    """`COMMIT_SUCCESS` exists."""
    REVERTING = "reverting"
    """The turn ended `reverted` or `passed`: the job's files are being removed."""
    ABORTING = "aborting"
    """`COMMIT_STARTED` has the verdict abort; the job's uploads are being aborted."""
    QUARANTINED = "quarantined"
    """Its records could not be read, and an operator set it aside: nothing is deleted until it is aborted."""
    FAILED = "failed"
    """`COMMIT_FAIL` exists."""


NEXT: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    # OPEN to REVERTING: the turn was passed before the decision was written.
    # To QUARANTINED: from a phase that could not be read, which was one of these.
    JobPhase.OPEN: frozenset({JobPhase.DECIDED, JobPhase.REVERTING, JobPhase.ABORTING, JobPhase.QUARANTINED}),
    JobPhase.DECIDED: frozenset({JobPhase.PUBLISHED, JobPhase.REVERTING, JobPhase.QUARANTINED}),
    JobPhase.PUBLISHED: frozenset({JobPhase.COMMITTED}),
    JobPhase.COMMITTED: frozenset(),
    JobPhase.REVERTING: frozenset({JobPhase.FAILED}),
    JobPhase.ABORTING: frozenset({JobPhase.FAILED}),
    JobPhase.QUARANTINED: frozenset({JobPhase.FAILED}),
    JobPhase.FAILED: frozenset(),
}

TERMINAL: Final = frozenset(phase for phase, following in NEXT.items() if not following)
UNDECIDED: Final = frozenset({JobPhase.OPEN})


def advance(phase: JobPhase, to: JobPhase) -> JobPhase:
    """Return `to` if the table allows the transition.

    Raises:
        ConflictError: The table does not allow it; nothing was changed.
    """
    if to not in NEXT[phase]:
        raise ConflictError(f"a job that is {phase} cannot become {to}; nothing was changed")
    return to


def phase_of(
    decision: Decision | None, outcome: Outcome | None, success: Ended | None, failure: Ended | None
) -> JobPhase:
    """Derive a job's phase from its markers.

    Args:
        decision: `COMMIT_STARTED`, if it exists.
        outcome: Outcome of the turn that the decision names, if it exists.
        success: `COMMIT_SUCCESS`, if it exists.
        failure: `COMMIT_FAIL`, if it exists.

    Raises:
        MalformedRecordError: The markers contradict each other; nothing may be changed.
    """
    match (success is not None, failure is not None), decision:
        case (True, True), _:
            raise MalformedRecordError(
                "both COMMIT_SUCCESS and COMMIT_FAIL exist: change nothing, inspect the job by hand"
            )
        case (True, _), Decision(verdict="commit"):
            return JobPhase.COMMITTED
        case (_, True), Decision():
            return JobPhase.FAILED
        case (False, False), None:
            return JobPhase.OPEN
        case (False, False), Decision(verdict="abort"):
            return JobPhase.ABORTING
        case (False, False), Decision(verdict="quarantined"):
            return JobPhase.QUARANTINED
        case (False, False), Decision():
            return _by_outcome(outcome)
        case _:
            raise MalformedRecordError("a terminal marker exists without its decision: change nothing")


def _by_outcome(outcome: Outcome | None) -> JobPhase:
    if outcome is None:
        return JobPhase.DECIDED
    return JobPhase.PUBLISHED if outcome.verdict == "published" else JobPhase.REVERTING
