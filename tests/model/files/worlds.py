"""The explored worlds, and for each rule the world and the invariant that its absence breaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.model.files.invariants import Invariant
from tests.model.files.rules import Role, Rule, World
from tests.model.files.state import Faults

_WRITTEN: Final = (Role.WRITER, Role.RECOVERER)
_REOPENED: Final = (Role.APPENDER, Role.RECOVERER)
_CUT: Final = (Role.TRUNCATER, Role.RECOVERER)

FULL: Final[Mapping[str, World]] = {
    "a damaged volume and one out of reach": World(
        _WRITTEN, faults=Faults(restarts=1, damages=1, absences=1)
    ),
    "two restarts, one of them with damage": World(_WRITTEN, faults=Faults(restarts=2, damages=1)),
    "a lost call": World(_WRITTEN, faults=Faults(lost=1), unwritten=2),
    "a writer, another writer and a recovery": World(
        (Role.WRITER, Role.APPENDER, Role.RECOVERER), unwritten=2
    ),
    "append to a closed file": World(_REOPENED, faults=Faults(restarts=1, damages=1, absences=1), length=1),
    "truncate, with a restart and a volume out of reach": World(
        _CUT, faults=Faults(restarts=1, absences=1, lost=1), length=2, unwritten=0, stamps=4
    ),
    "a new block": World(_WRITTEN, faults=Faults(restarts=1, lost=1), is_new=True),
}
"""Explored by the tests."""

LARGER: Final[Mapping[str, World]] = {
    "two bytes, and each fault of a volume": World(
        _WRITTEN, faults=Faults(restarts=1, damages=1, absences=1), unwritten=2
    ),
    "two repairs of the pipeline": World(_WRITTEN, faults=Faults(absences=2), unwritten=2, stamps=4),
    "two recoveries at once": World(
        (*_WRITTEN, Role.RECOVERER), faults=Faults(restarts=1, damages=1), stamps=4
    ),
    "truncate, append and a recovery": World(
        (Role.TRUNCATER, Role.APPENDER, Role.RECOVERER), faults=Faults(absences=1), length=2, stamps=4
    ),
    "three volumes": World(_WRITTEN, volumes=3, faults=Faults(restarts=1, damages=1)),
    "a new block, and a volume out of reach": World(
        _WRITTEN, faults=Faults(restarts=1, absences=1, lost=1), is_new=True
    ),
}
"""Explored by `make soak` and by `python -m tests.model.files`."""

SMALL: Final[Mapping[str, World]] = {
    "writer and recovery": World(_WRITTEN, faults=Faults(restarts=1)),
    "two restarts": FULL["two restarts, one of them with damage"],
    "append": FULL["append to a closed file"],
    "an old copy": World(_REOPENED, faults=Faults(rollbacks=1), length=1),
    "append with a volume out of reach": World(_REOPENED, faults=Faults(absences=1), length=1),
    "truncate": World(_CUT, faults=Faults(restarts=1, absences=1), length=2, unwritten=0),
}
"""Large enough to break each rule's promise where the rule is dropped, and small, for short traces."""


class Drop(NamedTuple):
    """The invariant that breaks without a rule, and a small world in which it breaks."""

    broken: Invariant
    world: World


_PLAIN, _RESTARTED, _APPENDED, _COPIED, _AWAY, _TRUNCATED = SMALL.values()
_DAMAGED_AND_AWAY: Final = FULL["a damaged volume and one out of reach"]

DROPS: Final[Mapping[Rule, Drop]] = {
    Rule.FENCE_FIRST: Drop(Invariant.FLUSHED_STAYS, _PLAIN),
    Rule.FENCE_REFUSES: Drop(Invariant.ONE_WRITER, _PLAIN),
    Rule.FINISH_PERSISTS: Drop(Invariant.SEALED_ALIKE, _PLAIN),
    Rule.COMPARE_AND_SWAP: Drop(Invariant.MEMBERS_AT_STAMP, _PLAIN),
    Rule.LEASE: Drop(Invariant.LEASE_HELD, _PLAIN),
    Rule.LEASE_AFTER_CREATION: Drop(Invariant.FLUSHED_STAYS, World(_WRITTEN, is_new=True)),
    Rule.FLUSH_ON_ALL: Drop(Invariant.FLUSHED_STAYS, _PLAIN),
    Rule.DROP_IS_JOURNALED: Drop(Invariant.FLUSHED_STAYS, _PLAIN),
    Rule.MEMBERS_ONLY: Drop(Invariant.FLUSHED_STAYS, _AWAY),
    Rule.NOT_OLDER: Drop(Invariant.FLUSHED_STAYS, _COPIED),
    Rule.BEST_STATE: Drop(Invariant.FLUSHED_STAYS, _RESTARTED),
    Rule.LONGEST_SUSPECT: Drop(Invariant.FLUSHED_STAYS, _RESTARTED),
    Rule.ALL_SUSPECTS: Drop(Invariant.FLUSHED_IS_COMMITTED, _DAMAGED_AND_AWAY),
    Rule.FLOOR: Drop(Invariant.NOT_SHORTER, _APPENDED),
    Rule.TARGET_FIRST: Drop(Invariant.FLUSHED_STAYS, _TRUNCATED),
    Rule.TARGET_STAYS: Drop(Invariant.TARGET_REACHED, _TRUNCATED),
    Rule.FINISH_BEFORE_COMMIT: Drop(Invariant.SEALED_ALIKE, _PLAIN),
    Rule.READ_BY_STATE: Drop(Invariant.READS_FLUSHED, _RESTARTED),
}
"""Rules that safety needs."""

SECOND_LINES: Final[Mapping[Rule, tuple[Rule, Drop]]] = {
    Rule.SUSPECT_REFUSES: (Rule.OFFSET, Drop(Invariant.SEALED_ALIKE, _APPENDED)),
    Rule.OFFSET: (Rule.SUSPECT_REFUSES, Drop(Invariant.SEALED_ALIKE, _APPENDED)),
    Rule.FENCE_PERSISTS: (Rule.SUSPECT_REFUSES, Drop(Invariant.ONE_WRITER, _PLAIN)),
}
"""Rules that another rule stands in for: the model breaks when both are dropped."""

SPARES_WORK: Final = (Rule.LEAST_OF_BEST,)
"""Rules without which nothing is broken: replicas are dropped that could have been cut."""
