"""The explored worlds, and for each rule the world and the invariant that its absence breaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.model.commit.invariants import Invariant
from tests.model.commit.rules import COMMITTER, RECOVERER, Rule, World
from tests.model.commit.state import Job

APPEND, REPLACE = COMMITTER[Job.APPEND], COMMITTER[Job.REPLACE]
EITHER: Final = ("abort", "resume")
ABORT_ONLY: Final = ("abort",)

FULL: Final[Mapping[str, World]] = {
    "two jobs and a recoverer": World((APPEND, REPLACE, RECOVERER), files=(2, 1)),
    "a committer, its zombie and a recoverer, append": World(
        (APPEND, APPEND, RECOVERER), on_lapse=(ABORT_ONLY, EITHER)
    ),
    "a committer, its zombie and a recoverer, replace": World(
        (REPLACE, REPLACE, RECOVERER), on_lapse=(EITHER, ABORT_ONLY)
    ),
    "nothing goes wrong but crashes, pauses and lost answers": World(
        (APPEND, REPLACE, REPLACE, RECOVERER), calm=True
    ),
}
"""Explored by the tests."""

LARGER: Final[Mapping[str, World]] = {
    "two jobs, a zombie and a recoverer": World((APPEND, REPLACE, REPLACE, RECOVERER)),
    "two jobs that may be resumed, and a recoverer": World(
        (APPEND, REPLACE, RECOVERER), on_lapse=(EITHER, EITHER)
    ),
    "a zombie of each job, in calm": World((APPEND, APPEND, REPLACE, REPLACE, RECOVERER), calm=True),
}
"""Explored by hand: `python -m tests.model.commit`."""


SMALL: Final[Mapping[str, World]] = {
    "two jobs": World((APPEND, REPLACE)),
    "two jobs, in calm": World((APPEND, REPLACE), calm=True),
    "a committer and a recoverer": World((REPLACE, RECOVERER)),
    "a committer and its zombie, in calm": World((REPLACE, REPLACE), calm=True),
}
"""Large enough to break each rule's promise where the rule is dropped, and small, for short traces."""


class Drop(NamedTuple):
    """The invariant that breaks without a rule, and a small world in which it breaks."""

    broken: Invariant
    world: World


_RACE, _CALM_RACE, _RECOVERED, _CALM_ZOMBIE = SMALL.values()

DROPS: Final[Mapping[Rule, Drop]] = {
    Rule.TURN_BEFORE_PLAN: Drop(Invariant.SERIAL, _RACE),
    Rule.TURNS_END_FIRST: Drop(Invariant.SERIAL, _RACE),
    Rule.TURN_IF_ABSENT: Drop(Invariant.OLD_UNTIL_NEW, _RACE),
    Rule.DECISION_IF_ABSENT: Drop(Invariant.ONE_MARKER, _RECOVERED),
    Rule.LOSERS_FOLLOW_THE_DECISION: Drop(Invariant.ONE_MARKER, _RECOVERED),
    Rule.ABORT_IS_DECIDED: Drop(Invariant.ONE_MARKER, _RECOVERED),
    Rule.FILES_BEFORE_OUTCOME: Drop(Invariant.PUBLISHED_STAYS, _RACE),
    Rule.OUTCOME_IF_ABSENT: Drop(Invariant.PUBLISHED_STAYS, _RECOVERED),
    Rule.LOSERS_FOLLOW_THE_OUTCOME: Drop(Invariant.PUBLISHED_STAYS, _RECOVERED),
    Rule.PASSED_REVERTS: Drop(Invariant.OLD_UNTIL_NEW, _RACE),
    Rule.OUTCOME_BEFORE_REVERT: Drop(Invariant.PUBLISHED_STAYS, _RECOVERED),
    Rule.OUTCOME_BEFORE_DELETION: Drop(Invariant.OLD_UNTIL_NEW, _RACE),
    Rule.DELETION_BY_VERSION: Drop(Invariant.OLD_UNTIL_NEW, _RACE),
    Rule.UPLOADS_BEFORE_FILES: Drop(Invariant.NOTHING_LEFT, _RACE),
    Rule.REVERT_BEFORE_MARKER: Drop(Invariant.NOTHING_LEFT, _RACE),
    Rule.UNKNOWN_IS_READ_BACK: Drop(Invariant.PUBLISHED_STAYS, _RACE),
    Rule.DECIDED_IS_HELPED: Drop(Invariant.NO_NEEDLESS_FAILURE, _CALM_RACE),
    Rule.TURN_IS_LEFT: Drop(Invariant.NO_NEEDLESS_FAILURE, _CALM_ZOMBIE),
}
"""Rules that safety, or a job's success, needs."""

SPARES_WORK: Final = (Rule.CHECK_BEFORE_DECISION, Rule.PREFLIGHT)
"""Rules without which nothing is broken: a job that is reverted in the end is noticed before its decision."""
