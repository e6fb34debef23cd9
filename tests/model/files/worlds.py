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
    "a writer, another writer and a recovery": World(
        (Role.WRITER, Role.APPENDER, Role.RECOVERER), unwritten=2
    ),
    "two damages": World(_WRITTEN, faults=Faults(damages=2), unwritten=2),
    "a damage, a restart and a volume out of reach": World(
        _WRITTEN, faults=Faults(restarts=1, damages=1, absences=1)
    ),
    "a lost call": World(_WRITTEN, faults=Faults(lost=1), unwritten=2),
    "append to a closed file": World(_REOPENED, faults=Faults(restarts=1, damages=1, absences=1), length=1),
    "truncate, with a restart and a volume out of reach": World(
        _CUT, faults=Faults(restarts=1, absences=1, lost=1), length=2, unwritten=0, stamps=4
    ),
    "a new block": World(_WRITTEN, faults=Faults(restarts=1, lost=1), is_new=True),
}
"""Explored by the tests."""

LARGER: Final[Mapping[str, World]] = {
    "two bytes, a damage and a volume out of reach": World(
        _WRITTEN, faults=Faults(damages=1, absences=1), unwritten=2
    ),
    "two repairs of the pipeline": World(_WRITTEN, faults=Faults(absences=2), unwritten=2, stamps=4),
    "two recoveries at once": World((*_WRITTEN, Role.RECOVERER), faults=Faults(damages=1)),
    "truncate, append and a recovery": World(
        (Role.TRUNCATER, Role.APPENDER, Role.RECOVERER), faults=Faults(absences=1), length=2, stamps=4
    ),
    "three volumes": World(_WRITTEN, volumes=3, faults=Faults(damages=2)),
    "a new block, and a volume out of reach": World(
        _WRITTEN, faults=Faults(damages=1, absences=1, lost=1), is_new=True
    ),
}
"""Explored by `make soak` and by `python -m tests.model.files`."""

_PLAIN: Final = World(_WRITTEN, faults=Faults(restarts=1))
_LONGER: Final = World(_WRITTEN, faults=Faults(restarts=1), unwritten=2)
_DAMAGED: Final = World(_WRITTEN, faults=Faults(damages=1), unwritten=2)
_ALONE: Final = World(_REOPENED, volumes=1, faults=Faults(damages=1), length=1)
_APPENDED: Final = World(_REOPENED, faults=Faults(damages=1, absences=1), length=1)
_COPIED: Final = World(_REOPENED, faults=Faults(rollbacks=1, absences=1), length=1)
_AWAY: Final = World(_REOPENED, faults=Faults(absences=2), length=1)
_TRUNCATED: Final = World(_CUT, faults=Faults(restarts=1, absences=1), length=2, unwritten=0)


class Drop(NamedTuple):
    """The invariant that breaks without a rule, and a small world in which it breaks."""

    broken: Invariant
    world: World


DROPS: Final[Mapping[Rule, Drop]] = {
    Rule.FENCE_FIRST: Drop(Invariant.ONE_WRITER, _PLAIN),
    Rule.FENCE_PERSISTS: Drop(Invariant.ONE_WRITER, _PLAIN),
    Rule.OWN_LOG: Drop(Invariant.ONE_WRITER, _PLAIN),
    Rule.LOOK: Drop(Invariant.FLUSHED_STAYS, _LONGER),
    Rule.OFFSET: Drop(Invariant.SEALED_ALIKE, _LONGER),
    Rule.FINISH_PERSISTS: Drop(Invariant.SEALED_ALIKE, _PLAIN),
    Rule.COMPARE_AND_SWAP: Drop(Invariant.MEMBERS_AT_STAMP, _PLAIN),
    Rule.LEASE: Drop(Invariant.LEASE_HELD, _PLAIN),
    Rule.FLUSH_ON_ALL: Drop(Invariant.FLUSHED_STAYS, _PLAIN),
    Rule.FIRST_FLUSH: Drop(Invariant.FLUSHED_STAYS, World(_WRITTEN, is_new=True)),
    Rule.DROP_IS_JOURNALED: Drop(Invariant.FLUSHED_STAYS, _LONGER),
    Rule.MEMBERS_ONLY: Drop(Invariant.FLUSHED_STAYS, _AWAY),
    Rule.GIVEN: Drop(Invariant.READS_FLUSHED, _APPENDED),
    Rule.NOT_OLDER: Drop(Invariant.FLUSHED_IS_COMMITTED, _COPIED),
    Rule.UNDAMAGED: Drop(Invariant.FLUSHED_IS_COMMITTED, _ALONE),
    Rule.LONGEST: Drop(Invariant.FLUSHED_STAYS, _DAMAGED),
    Rule.COPY: Drop(Invariant.SEALED_ALIKE, _DAMAGED),
    Rule.FLOOR: Drop(Invariant.NOT_SHORTER, _APPENDED),
    Rule.ACKNOWLEDGED: Drop(Invariant.NOT_SHORTER, _ALONE),
    Rule.TARGET_FIRST: Drop(Invariant.FLUSHED_STAYS, _TRUNCATED),
    Rule.TARGET_STAYS: Drop(Invariant.TARGET_REACHED, _TRUNCATED),
    Rule.FINISH_BEFORE_COMMIT: Drop(Invariant.SEALED_ALIKE, _PLAIN),
    Rule.READ_ON_ALL: Drop(Invariant.READS_STAY, _PLAIN),
}
"""Rules that safety needs."""
