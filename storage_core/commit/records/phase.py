"""The state machine of a job: a table, and the one function that moves along it.

A phase is never stored. It is read off what stands in the store, so that every process sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lockgate.storage_core.commit.records.job import Decision, Ended, Outcome
from lockgate.storage_core.errors import ConflictError, MalformedRecordError


class JobPhase(StrEnum):
    """Where a job stands."""

    OPEN = "open"
    """Undecided: everything can still be undone."""
    DECIDED = "decided"
    """`COMMIT_STARTED` says commit; its turn has no outcome: only forward."""
    PUBLISHED = "published"
    """Manifest readers see the job; replaced files and markers are left to do."""
    COMMITTED = "committed"
    """`COMMIT_SUCCESS`."""
    REVERTING = "reverting"
    """Its turn ended `reverted` or `passed`: its files are being taken back."""
    ABORTING = "aborting"
    """`COMMIT_STARTED` says abort; its uploads are being dropped."""
    FAILED = "failed"
    """`COMMIT_FAIL`."""


NEXT: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    # Straight to REVERTING: by a decision whose turn was passed meanwhile.
    JobPhase.OPEN: frozenset({JobPhase.DECIDED, JobPhase.REVERTING, JobPhase.ABORTING}),
    JobPhase.DECIDED: frozenset({JobPhase.PUBLISHED, JobPhase.REVERTING}),
    JobPhase.PUBLISHED: frozenset({JobPhase.COMMITTED}),
    JobPhase.COMMITTED: frozenset(),
    JobPhase.REVERTING: frozenset({JobPhase.FAILED}),
    JobPhase.ABORTING: frozenset({JobPhase.FAILED}),
    JobPhase.FAILED: frozenset(),
}

TERMINAL: Final = frozenset(phase for phase, following in NEXT.items() if not following)
UNDECIDED: Final = frozenset({JobPhase.OPEN})


def advance(phase: JobPhase, to: JobPhase) -> JobPhase:
    """Return `to` if the table allows the move.

    Raises:
        ConflictError: It does not; nothing was changed.
    """
    if to not in NEXT[phase]:
        raise ConflictError(f"a job that is {phase} cannot become {to}; nothing was changed")
    return to


def phase_of(
    decision: Decision | None, outcome: Outcome | None, success: Ended | None, failure: Ended | None
) -> JobPhase:
    """Read a job's phase off its markers.

    Args:
        decision: `COMMIT_STARTED`, if it stands.
        outcome: Of the turn that the decision names, if it has one.
        success: `COMMIT_SUCCESS`, if it stands.
        failure: `COMMIT_FAIL`, if it stands.

    Raises:
        MalformedRecordError: The markers contradict each other; nothing may be touched.
    """
    marks = (success is not None, failure is not None)
    match marks, decision:
        case (True, True), _:
            raise MalformedRecordError(
                "both COMMIT_SUCCESS and COMMIT_FAIL stand: touch nothing, look by hand"
            )
        case (True, _), Decision(verdict="commit"):
            return JobPhase.COMMITTED
        case (_, True), Decision():
            return JobPhase.FAILED
        case (False, False), None:
            return JobPhase.OPEN
        case (False, False), Decision(verdict="abort"):
            return JobPhase.ABORTING
        case (False, False), Decision():
            return _by_outcome(outcome)
        case _:
            raise MalformedRecordError("a terminal marker stands without its decision: touch nothing")


def _by_outcome(outcome: Outcome | None) -> JobPhase:
    if outcome is None:
        return JobPhase.DECIDED
    return JobPhase.PUBLISHED if outcome.verdict == "published" else JobPhase.REVERTING
