"""Reseal: lease and stamp in the journal, fence, choice of a length, copy or trim, finish, commit.

Each function is one call of one process and yields its possible results, the one without a fault first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.files import calls
from tests.model.files.calls import Answer
from tests.model.files.choice import choose
from tests.model.files.faults import Move, with_lost_calls
from tests.model.files.rules import Role, Rule, World
from tests.model.files.state import (
    GONE,
    IDLE,
    NO_REPLICA,
    NO_TARGET,
    TAKER,
    Kind,
    Process,
    Replica,
    Seen,
    Step,
    Store,
    seen_of,
    volumes,
)


def begin(world: World, role: Role, store: Store) -> Iterator[Move]:
    """Find something to do, and take the lease and a stamp."""
    block = store.block
    if role is Role.RECOVERER and (block.pending or not block.is_closed):
        yield stamp_block(world, store, Process(Step.STAMP, ends=Kind.SEALED), is_taking=True)
    elif role is Role.APPENDER:
        yield stamp_block(world, store, Process(Step.STAMP, ends=Kind.WRITING), is_taking=True)
    elif role is Role.TRUNCATER and block.is_closed and not block.pending:
        for target in range(block.length):
            process = Process(Step.STAMP, ends=Kind.SEALED, target=target)
            yield stamp_block(world, store, process, is_taking=True)


def stamp_block(world: World, store: Store, process: Process, *, is_taking: bool) -> Move:
    """Journal `StampBlock` in one entry with the lease, and with the target of a truncate."""
    block = store.block
    stamp = block.clock + 1
    target = block.target
    if target == NO_TARGET and world.follows(Rule.TARGET_FIRST):
        target = process.target
    # Without the target in the journal, a crash after a cut leaves one replica that lacks promised bytes.
    cut = stamp if target != NO_TARGET else store.cut
    flushed = store.flushed if target == NO_TARGET else store.flushed[:target]
    after = block._replace(
        pending=stamp, clock=stamp, target=target, holder=TAKER if is_taking else block.holder
    )
    if world.follows(Rule.TARGET_STAYS):
        process = process._replace(target=target if target != NO_TARGET else process.target)
    asked = block.members if world.follows(Rule.MEMBERS_ONLY) else (1 << world.volumes) - 1
    reading = process._replace(
        step=Step.FENCE if world.follows(Rule.FENCE_FIRST) else Step.LOOK,
        stamp=stamp,
        left=asked,
        members=asked,
        seen=(None,) * world.volumes,
        closes=False,
    )
    word = f" with target {process.target}" if process.target != NO_TARGET else ""
    return f"takes stamp {stamp}{word}", store._replace(block=after, flushed=flushed, cut=cut), reading


def look(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Read the lengths before the fence: only without the rule."""
    seen = tuple(
        seen_of(replica) if replica.is_up and replica.exists and process.members >> volume & 1 else None
        for volume, replica in enumerate(store.replicas)
    )
    yield "reads the lengths", store, process._replace(step=Step.FENCE, seen=seen)


def fence(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Fence one member and read its length, or miss it."""
    for volume in volumes(process.left):
        replica = store.replicas[volume]
        if replica.is_up and not replica.exists:
            absent = (*process.seen[:volume], NO_REPLICA, *process.seen[volume + 1 :])
            left = process.left & ~(1 << volume)
            yield f"finds no replica at volume {volume}", store, _chosen(world, store, process, left, absent)
            continue
        answer, after = calls.fence(world, store, volume, process.stamp)
        if answer is Answer.FENCED:
            yield f"is fenced at volume {volume}", store, _stopped(process)
            continue
        left = process.left & ~(1 << volume)
        seen = process.seen
        if answer is Answer.DONE:
            if world.follows(Rule.FENCE_FIRST):
                seen = (*seen[:volume], seen_of(replica), *seen[volume + 1 :])
            yield f"fences volume {volume}", after, _chosen(world, store, process, left, seen)
        missed = (*process.seen[:volume], None, *process.seen[volume + 1 :])
        if answer is Answer.FAILED:
            yield f"misses volume {volume}", store, _chosen(world, store, process, left, missed)
            continue
        for word, then in with_lost_calls(store, after):
            yield (
                f"misses volume {volume}: {word}",
                then,
                _chosen(world, store, process, left, missed),
            )


def _chosen(
    world: World, store: Store, process: Process, left: int, seen: tuple[Seen | None, ...]
) -> Process:
    """Choose a length once no member is left to fence."""
    if left:
        return process._replace(left=left, seen=seen)
    answers = {volume: one for volume, one in enumerate(seen) if one not in (None, NO_REPLICA)}
    absent = sum(1 << volume for volume, one in enumerate(seen) if one == NO_REPLICA)
    if absent == process.members and (not store.block.length or not world.follows(Rule.FLOOR)):
        return process._replace(step=Step.COMMIT, left=0, members=0, length=0, seen=(), ends=Kind.SEALED)
    choice = choose(world, store.block, answers, process.target)
    if choice is None:
        return _stopped(process)
    kept = sum(1 << volume for volume in choice.members)
    return process._replace(
        step=Step.FIT,
        left=kept,
        members=kept,
        length=choice.length,
        seen=(),
        known=max(one.acknowledged for one in answers.values()),
        is_told=any(not one.is_damaged for one in answers.values())
        or not any(one.hides for one in answers.values()),
        source=choice.source,
    )


_WORDS: Final = {Step.FIT: ("fits", Step.FINISH), Step.FINISH: ("finishes", Step.COMMIT)}


def _stopped(process: Process) -> Process:
    """Return the process that gives the reseal up; a later one begins again."""
    return GONE if process.ends is Kind.WRITING else IDLE


def fit(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Cut one replica to the length, or copy to it what it lacks."""
    for volume in volumes(process.left):
        result = calls.fit(world, store, volume, process)
        yield from _each(store, process, volume, result)


def finish(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Seal one replica, or open it to appends at the new stamp."""
    if not world.follows(Rule.FINISH_BEFORE_COMMIT) and not process.closes:
        yield "finishes nothing", store, process._replace(step=Step.COMMIT)
        return
    for volume in volumes(process.left):
        result = calls.finish(world, store, volume, process)
        yield from _each(store, process, volume, result)


def _each(store: Store, process: Process, volume: int, result: tuple[Answer, Store]) -> Iterator[Move]:
    answer, after = result
    word, then = _WORDS[process.step]
    bit = 1 << volume
    if answer is Answer.DONE:
        yield f"{word} volume {volume}", after, _next(process, process.left & ~bit, then)
        for lost, store_then in with_lost_calls(store, after):
            yield f"{word} volume {volume}: {lost}", store_then, _dropped(process, bit, then)
    elif answer is Answer.FENCED:
        yield f"is fenced at volume {volume}", store, _stopped(process)
    else:
        yield f"drops volume {volume}", store, _dropped(process, bit, then)


def _next(process: Process, left: int, then: Step) -> Process:
    return process._replace(left=left) if left else process._replace(step=then, left=process.members)


def _dropped(process: Process, bit: int, then: Step) -> Process:
    if process.closes:  # members are dropped by a reseal only
        return process._replace(step=Step.STAMP, ends=Kind.WRITING, left=0, closes=False)
    members = process.members & ~bit
    if not members:
        return _stopped(process)
    return _next(process._replace(members=members), process.left & ~bit, then)


def commit(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Journal `CommitBlock` if the block still has the reseal's stamp. A lost answer is read back."""
    block = store.block
    expected = (block.stamp, 0) if process.closes else (process.stamp, process.stamp)
    found = (process.stamp, block.pending) if process.closes else (block.clock, block.pending)
    # Otherwise an older reseal commits members that a newer one has trimmed and stamped.
    if world.follows(Rule.COMPARE_AND_SWAP) and found != expected:
        yield "finds a newer stamp", store, _stopped(process)
        return
    is_closed = process.ends is Kind.SEALED
    after = block._replace(
        stamp=process.stamp,
        pending=0,
        target=NO_TARGET,
        members=process.members,
        length=process.length,
        is_closed=is_closed,
    )
    flushed = store.flushed[: process.target] if process.target != NO_TARGET else store.flushed
    cut = store.cut
    if process.members and not process.closes and not process.is_told:
        # A loss was hidden, and no member had the bytes.
        flushed, cut = flushed[: process.length], process.stamp
    replicas = tuple(
        replica._replace(is_damaged=_is_damaged(replica, process), hides=False)
        if process.members >> number & 1
        else replica
        for number, replica in enumerate(store.replicas)
    )
    committed = store._replace(block=after, replicas=replicas, flushed=flushed, cut=cut)
    text = f"commits stamp {process.stamp}, {process.length} bytes"
    if is_closed:
        yield text, committed, IDLE
    elif process.closes:
        yield text, committed, process._replace(step=Step.ACKNOWLEDGE)
    else:
        data = max((replicas[volume].data for volume in volumes(process.members)), key=len)
        writes = Process(
            Step.READY,
            process.stamp,
            members=process.members,
            length=process.length,
            ends=Kind.WRITING,
            data=data[: process.length],
        )
        yield text, committed, writes


def _is_damaged(replica: Replica, process: Process) -> bool:
    """Return whether a fault came after the finish; what the reseal has repaired counts as good."""
    finished = (process.stamp, process.ends, process.length)
    return replica.is_damaged and (replica.stamp, replica.kind, len(replica.data)) != finished
