"""Invariants of every state, of every move, and of the state after a recovery without faults."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, combinations
from typing import Final

from tests.model.files.choice import choose
from tests.model.files.rules import Rule, World
from tests.model.files.state import NO_TARGET, Kind, Process, Seen, State, Step, Store, holds, volumes


class Invariant(StrEnum):
    """One promise about a block."""

    FLUSHED_STAYS = "flushed bytes stay on each member that no fault has damaged"
    FLUSHED_IS_COMMITTED = "a commit has the flushed bytes while one member has them"
    SEALED_ALIKE = "the members of a closed block are sealed, durable and identical"
    MEMBERS_AT_STAMP = "the members of a committed block have its stamp"
    ONE_WRITER = "no append is accepted at a member that a reseal with a newer stamp has read or committed"
    LEASE_HELD = "a block is committed by the holder of its lease"
    TARGET_REACHED = "a journaled target is the length of the next commit"
    NOT_SHORTER = "no commit is shorter than the one before, except for a target"
    READS_FLUSHED = "a reader gets the flushed bytes, or an error"
    ENDS = "one recovery without faults closes the block, unless no member has the bytes of its last commit"


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
    if members and not _reads_flushed(world, store):
        yield Invariant.READS_FLUSHED


def _reads_flushed(world: World, store: Store) -> bool:
    """Read the block at its committed stamp from each possible set of reachable members."""
    block = store.block
    served = [volume for volume in volumes(block.members) if store.replicas[volume].stamp == block.stamp]
    sets = chain.from_iterable(combinations(served, size) for size in range(1, len(served) + 1))
    for reached in sets:
        answers = {
            volume: Seen(replica.stamp, replica.kind, replica.durable)
            for volume in reached
            for replica in (store.replicas[volume],)
        }
        if world.follows(Rule.READ_BY_STATE):
            choice = choose(world, block, answers, block.target)
            if choice is None:
                continue  # an error: the reader waits for other members
            length, sources = choice.length, choice.members
        else:
            length, sources = min(seen.length for seen in answers.values()), frozenset(reached)
        for volume in sources:
            data = store.replicas[volume].data[:length]
            if data[: len(store.flushed)] != store.flushed:
                return False
    return True


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
        return other.seen[volume] is not None
    return other.step in _RESEALING and bool(other.members >> volume & 1)


_RESEALING: Final = frozenset({Step.TRIM, Step.FINISH, Step.COMMIT})


def _broken_by_commit(before: Store, after: Store, process: Process) -> Iterator[Invariant]:
    block = before.block
    is_there = any(holds(before.replicas[volume], before.flushed) for volume in volumes(block.members))
    # A fault after the finish is as one after the commit: it shows in the length of the replica.
    kept = [after.replicas[volume] for volume in volumes(after.block.members)]
    has_all = process.length >= len(after.flushed) and all(
        replica.is_damaged or holds(replica, after.flushed) for replica in kept
    )
    if is_there and not has_all:
        yield Invariant.FLUSHED_IS_COMMITTED
    if block.target not in {NO_TARGET, after.block.length}:
        yield Invariant.TARGET_REACHED
    if process.target == NO_TARGET and after.block.length < block.length:
        yield Invariant.NOT_SHORTER
