"""The choice of a length from what the volumes answered, and what readers see of a block that is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.model.files.rules import Rule, World
from tests.model.files.state import NO_TARGET, Block, Seen


class Choice(NamedTuple):
    """A length, a replica that has it, and the members that have it or get what they lack."""

    length: int
    source: int
    members: frozenset[int]


def choose(world: World, block: Block, answers: Mapping[int, Seen], target: int) -> Choice | None:
    """Return the length of a block and the replicas that stay, or None if none of them will do.

    Args:
        world: The rules that are followed.
        block: The block as the reseal found it in the journal.
        answers: The answer of each member that answered with a replica.
        target: The truncate's target, or `NO_TARGET`.
    """
    floor = target
    if target == NO_TARGET:
        # A damaged replica would bring back fewer bytes than a closed file had, or than a flush has promised.
        floor = block.length if world.follows(Rule.FLOOR) else 0
        if world.follows(Rule.ACKNOWLEDGED):
            floor = max(floor, *(seen.acknowledged for seen in answers.values()), 0)
    lengths = {
        volume: seen.length
        for volume, seen in answers.items()
        if seen.length >= floor and not (seen.shows and world.follows(Rule.UNDAMAGED))
    }
    if not lengths:
        return None
    # Every undamaged replica has all that was flushed: one that was cut without a trace is shorter.
    source = max(lengths, key=lambda one: lengths[one] if world.follows(Rule.LONGEST) else -lengths[one])
    length = target if target != NO_TARGET else lengths[source]
    return Choice(length, source, frozenset(answers))


def readable(world: World, block: Block, answers: Mapping[int, Seen]) -> int | None:
    """Return how many bytes of a block a reader sees, or None for an error.

    Args:
        world: The rules that are followed.
        block: The block in the journal.
        answers: The answer of each member that answered with a replica.
    """
    if block.target != NO_TARGET:
        return block.target
    floor = block.length
    if block.is_closed and not block.pending:
        return floor
    usable = {volume: seen for volume, seen in answers.items() if seen.stamp >= block.stamp}
    if not world.follows(Rule.READ_ON_ALL):
        return max((seen.length for seen in usable.values()), default=floor)
    is_undamaged = not any(seen.shows for seen in usable.values())
    lengths = {seen.length for seen in usable.values()} or {0}
    # What a fenced log knows may be less than its writer has acknowledged to its caller since.
    at_stamp = [seen for seen in usable.values() if seen.stamp == block.stamp]
    known = max((seen.acknowledged for seen in at_stamp), default=0)
    if is_undamaged and len(usable) == block.members.bit_count():
        is_told = len(at_stamp) == len(usable) or len(lengths) == 1
        return max(floor, known, min(lengths)) if is_told else None
    if known or (is_undamaged and at_stamp and len(at_stamp) == len(usable) and max(lengths) <= floor):
        return max(floor, known)
    return None
