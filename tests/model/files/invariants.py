"""Invariants of every state, of every move, and of the state after a recovery without faults."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, combinations
from typing import Final

from tests.model.files.choice import readable
from tests.model.files.rules import World
from tests.model.files.state import (
    NO_REPLICA,
    NO_TARGET,
    Kind,
    Process,
    State,
    Step,
    Store,
    holds,
    seen_of,
    volumes,
)


class Invariant(StrEnum):
    """One promise about a block."""

    FLUSHED_STAYS = "flushed bytes stay on each member that no fault has damaged"
    FLUSHED_IS_COMMITTED = (
        "a commit has the flushed bytes if an undamaged member answered, or if none hides a loss"
    )
    SEALED_ALIKE = "the members of a closed block are sealed, durable and identical"
    MEMBERS_AT_STAMP = "the members of a committed block have its stamp"
    ONE_WRITER = "no append is accepted at a member that a reseal with a newer stamp has read or committed"
    LEASE_HELD = "a block is committed by the holder of its lease"
    TARGET_REACHED = "a journaled target is the length of the next commit"
    NOT_SHORTER = "no commit but a truncate is shorter than the one before or an acknowledged length"
    READS_FLUSHED = "a reader gets the flushed bytes, or an error, if a member that it reaches hides no loss"
    READS_STAY = "a reader gets bytes that all undamaged members have, so that no later commit lacks them"
    ENDS = "one recovery without faults closes the block, unless each member shows its loss"


def broken_in(world: World, store: Store) -> Iterator[Invariant]:
    """Yield the invariants that a store violates, regardless of the processes."""
    block = store.block
    every = [store.replicas[volume] for volume in volumes(block.members)]
    members = [replica for replica in every if not replica.is_damaged]
    if not all(holds(replica, store.flushed) for replica in members) or (store.flushed and not every):
        yield Invariant.FLUSHED_STAYS
    members = [replica for replica in members if replica.exists]
    if any(replica.stamp < block.stamp for replica in members):
        yield Invariant.MEMBERS_AT_STAMP
    elif not block.pending:
        if any(replica.stamp != block.stamp for replica in members):
            yield Invariant.MEMBERS_AT_STAMP
        if block.is_closed and not all(
            replica.kind is Kind.SEALED
            and replica.data == members[0].data
            and replica.durable == len(replica.data) == block.length
            for replica in members
        ):
            yield Invariant.SEALED_ALIKE
    yield from _broken_by_reading(world, store)


def _broken_by_reading(world: World, store: Store) -> Iterator[Invariant]:
    """Read the block from each possible set of reachable members."""
    block = store.block
    there = [volume for volume in volumes(block.members) if store.replicas[volume].exists]
    sets = chain.from_iterable(combinations(there, size) for size in range(1, len(there) + 1))
    for reached in sets:
        length = readable(world, block, {volume: seen_of(store.replicas[volume]) for volume in reached})
        if length is None:
            continue  # an error
        is_told = not all(store.replicas[volume].hides for volume in reached)
        for volume in reached:
            replica = store.replicas[volume]
            if len(replica.data) < length:
                if not replica.is_damaged:
                    yield Invariant.READS_STAY
                continue  # an error at this member: a read is never short
            is_served = replica.stamp >= block.stamp and is_told
            if is_served and replica.data[:length][: len(store.flushed)] != store.flushed:
                yield Invariant.READS_FLUSHED


def broken_between(before: State, after: State, index: int) -> Iterator[Invariant]:
    """Yield the invariants that a move of a process violates."""
    process = before.processes[index]
    old, new = before.store.block, after.store.block
    if process.step is Step.APPEND:
        readers = [other for number, other in enumerate(before.processes) if number != index]
        for volume in _grown(before.store, after.store):
            is_left_behind = old.stamp > process.stamp and old.members >> volume & 1
            if is_left_behind or any(_has_read(other, process, volume) for other in readers):
                yield Invariant.ONE_WRITER
    if process.step is Step.COMMIT and new != old:
        yield from _broken_by_commit(before.store, after.store, process)
        if old.holder != index:
            yield Invariant.LEASE_HELD


def _grown(before: Store, after: Store) -> list[int]:
    pairs = zip(before.replicas, after.replicas, strict=True)
    return [volume for volume, (old, new) in enumerate(pairs) if len(new.data) > len(old.data)]


def _has_read(other: Process, writer: Process, volume: int) -> bool:
    """Return whether a reseal with a newer stamp has read the length of a replica that it may commit."""
    if other.stamp <= writer.stamp:
        return False
    if other.step is Step.FENCE:
        return other.seen[volume] not in (None, NO_REPLICA)
    return other.step in _RESEALING and bool(other.members >> volume & 1)


_RESEALING: Final = frozenset({Step.FIT, Step.FINISH, Step.COMMIT})


def _broken_by_commit(before: Store, after: Store, process: Process) -> Iterator[Invariant]:
    block = before.block
    # A fault after the finish is as one after the commit: it shows in the length of the replica.
    kept = [after.replicas[volume] for volume in volumes(after.block.members)]
    has_all = process.length >= len(after.flushed) and all(
        replica.is_damaged or holds(replica, after.flushed) for replica in kept
    )
    if not has_all and (process.is_told or process.closes):
        yield Invariant.FLUSHED_IS_COMMITTED
    if block.target not in {NO_TARGET, after.block.length}:
        yield Invariant.TARGET_REACHED
    if process.target == NO_TARGET and after.block.length < max(block.length, process.known):
        yield Invariant.NOT_SHORTER
