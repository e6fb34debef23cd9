"""The choice of a length from what the volumes answered; readers choose as a reseal does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.model.files.rules import Rule, World
from tests.model.files.state import NO_TARGET, Block, Kind, Seen


class Choice(NamedTuple):
    """A length, and the replicas that have it or more: shorter ones are dropped."""

    length: int
    members: frozenset[int]


def choose(world: World, block: Block, answers: Mapping[int, Seen], target: int) -> Choice | None:
    """Return the length of a block and the replicas that stay, or None if it must wait.

    Args:
        world: The rules that are followed.
        block: The block as the reseal found it in the journal.
        answers: The answer of each member that answered.
        target: The truncate's target, or `NO_TARGET`.
    """
    floor = target if target != NO_TARGET else block.length
    if not world.follows(Rule.FLOOR):
        floor = max(0, target)  # a damaged replica brings back fewer bytes than a closed file had
    oldest = block.stamp if world.follows(Rule.NOT_OLDER) else 0
    counting = {
        volume: seen for volume, seen in answers.items() if seen.length >= floor and seen.stamp >= oldest
    }
    if not counting:
        return None
    lengths = {kind: [seen.length for seen in counting.values() if seen.kind is kind] for kind in Kind}
    good = lengths[Kind.SEALED] or lengths[Kind.WRITING]
    if not world.follows(Rule.BEST_STATE):
        good = [seen.length for seen in counting.values()]  # a restarted volume shrinks what is flushed
    if target != NO_TARGET:
        length = target
    elif good:
        # Every flush is on all of them, so the shortest has all that is flushed, and needs no copying.
        length = min(good) if world.follows(Rule.LEAST_OF_BEST) else max(good)
    else:
        if world.follows(Rule.ALL_SUSPECTS) and len(answers) < block.members.bit_count():
            return None  # a member out of reach may hold flushed bytes that these have lost
        suspects = lengths[Kind.SUSPECT]
        # A damaged one may be shorter than what was flushed; CRCs hold for the longest.
        length = max(suspects) if world.follows(Rule.LONGEST_SUSPECT) else min(suspects)
    return Choice(length, frozenset(volume for volume, seen in counting.items() if seen.length >= length))
