"""The writer: appends to all members, flushes all members, repairs its pipeline by a reseal, closes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.files import calls
from tests.model.files.calls import Answer
from tests.model.files.faults import Move, with_lost_calls
from tests.model.files.resealing import stamp_block
from tests.model.files.rules import Rule, World
from tests.model.files.state import GONE, NO_TARGET, Kind, Process, Step, Store, volumes


def create(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create the replica of one volume."""
    for volume in volumes(process.left):
        answer, after = calls.create(store, volume, process.stamp)
        if answer is not Answer.DONE:
            yield f"fails at volume {volume}", store, process._replace(step=Step.STAMP, left=0)
            continue
        left = process.left & ~(1 << volume)
        # A takeover that found no replica could fence none.
        then = Step.CHECK if world.follows(Rule.LEASE_AFTER_CREATION) else Step.READY
        created = process._replace(step=process.step if left else then, left=left)
        yield f"creates the replica of volume {volume}", after, created
        for lost, unsure in with_lost_calls(store, after):
            failed = process._replace(step=Step.STAMP, left=0)
            yield f"creates the replica of volume {volume}: {lost}", unsure, failed


def check(store: Store, process: Process, index: int) -> Move:
    """Read the lease."""
    if store.block.holder != index:
        return "finds its lease taken", store, GONE
    return "holds its lease", store, process._replace(step=Step.READY)


def ready(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Decide what to do next."""
    if store.unwritten:
        yield (
            "writes a byte",
            store._replace(unwritten=store.unwritten - 1),
            process._replace(step=Step.APPEND, left=process.members, length=process.length + 1),
        )
    if process.length > len(store.flushed):
        yield "flushes", store, process._replace(step=Step.FLUSH, left=process.members)
    else:
        closing = process._replace(step=Step.FINISH, left=process.members, ends=Kind.SEALED, closes=True)
        yield "closes", store, closing


def append(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Send the byte to one member."""
    for volume in volumes(process.left):
        result = calls.append(world, store, volume, process)
        yield from _each(world, store, process, volume, result)


def flush(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Make one member's bytes durable; after the last one the caller of `flush` goes on."""
    for volume in volumes(process.left):
        result = calls.flush(store, volume, process.stamp, process.length)
        yield from _each(world, store, process, volume, result)


def _each(
    world: World,
    store: Store,
    process: Process,
    volume: int,
    result: tuple[Answer, Store],
) -> Iterator[Move]:
    answer, after = result
    word = "appends to" if process.step is Step.APPEND else "flushes"
    bit = 1 << volume
    if answer is Answer.DONE:
        left = process.left & ~bit
        # Bytes that one member has are gone with it.
        is_done = not left or (process.step is Step.FLUSH and not world.follows(Rule.FLUSH_ON_ALL))
        if is_done:
            yield (f"{word} volume {volume}", *_done(after, process))
        else:
            yield f"{word} volume {volume}", after, process._replace(left=left)
        for lost, unsure in with_lost_calls(store, after):
            yield f"{word} volume {volume}: {lost}", unsure, process._replace(step=Step.STAMP, left=0)
    elif answer is Answer.FENCED or world.follows(Rule.DROP_IS_JOURNALED) or process.members == bit:
        yield f"fails at volume {volume}", store, process._replace(step=Step.STAMP, left=0)
    else:
        # A later reseal would count the dropped member, which lacks what is flushed from here on.
        members, left = process.members & ~bit, process.left & ~bit
        then = process._replace(members=members, left=left)
        if left:
            yield f"goes on without volume {volume}", store, then
        else:
            yield (f"goes on without volume {volume}", *_done(store, then))


def _done(store: Store, process: Process) -> tuple[Store, Process]:
    then = process._replace(step=Step.READY, left=0)
    if process.step is Step.FLUSH and store.cut < process.stamp:
        data = max((store.replicas[volume].data for volume in volumes(process.members)), key=len)
        return store._replace(flushed=data[: process.length]), then
    return store, then


def repair(world: World, store: Store, process: Process, index: int) -> Iterator[Move]:
    """Stamp the block, to drop the failed member; without the lease the writer stops."""
    # Without the lease, a writer would open a file that a recovery has closed.
    if world.follows(Rule.LEASE) and store.block.holder != index:
        yield "finds its lease taken", store, GONE
        return
    yield stamp_block(world, store, process._replace(ends=Kind.WRITING, target=NO_TARGET), is_taking=False)
