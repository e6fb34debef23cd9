"""The writer: appends to all members, flushes all members, repairs its pipeline by a reseal, closes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.files import calls
from tests.model.files.calls import Answer
from tests.model.files.faults import Move, with_lost_calls
from tests.model.files.resealing import stamp_block
from tests.model.files.rules import Rule, World
from tests.model.files.state import GONE, NO_TARGET, Kind, Process, Step, Store, byte_of, volumes


def create(_: World, store: Store, process: Process) -> Iterator[Move]:
    """Create the replica of one volume."""
    for volume in volumes(process.left):
        answer, after = calls.create(store, volume, process.stamp)
        if answer is not Answer.DONE:
            yield f"fails at volume {volume}", store, process._replace(step=Step.STAMP, left=0)
            continue
        left = process.left & ~(1 << volume)
        created = process._replace(step=process.step if left else Step.READY, left=left)
        yield f"creates the replica of volume {volume}", after, created
        for lost, unsure in with_lost_calls(store, after):
            failed = process._replace(step=Step.STAMP, left=0)
            yield f"creates the replica of volume {volume}: {lost}", unsure, failed


def ready(_: World, store: Store, process: Process) -> Iterator[Move]:
    """Decide what to do next."""
    if store.unwritten:
        yield (
            "writes a byte",
            store._replace(unwritten=store.unwritten - 1),
            process._replace(
                step=Step.APPEND,
                left=process.members,
                length=process.length + 1,
                data=(*process.data, byte_of(process.stamp, process.length)),
            ),
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
    """Make one member's bytes durable."""
    for volume in volumes(process.left):
        result = calls.flush(world, store, volume, process.stamp, process.length)
        yield from _each(world, store, process, volume, result)


def acknowledge(_: World, store: Store, process: Process) -> Iterator[Move]:
    """Let the members know what all of them have; then the caller of `flush` goes on."""
    then = process._replace(step=Step.READY)
    after = store
    for volume in volumes(process.members):
        after = calls.acknowledge(after, volume, process.stamp, process.length)
    if store.cut < process.stamp:
        after = after._replace(flushed=process.data)
    yield "acknowledges the flush", after, then


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
        yield f"{word} volume {volume}", after, _next(world, after, process, process.left & ~bit)
        for lost, unsure in with_lost_calls(store, after):
            yield f"{word} volume {volume}: {lost}", unsure, process._replace(step=Step.STAMP, left=0)
    elif answer is Answer.FENCED or world.follows(Rule.DROP_IS_JOURNALED) or process.members == bit:
        yield f"fails at volume {volume}", store, process._replace(step=Step.STAMP, left=0)
    else:
        # A later reseal would count the dropped member, which lacks what is flushed from here on.
        then = process._replace(members=process.members & ~bit)
        yield f"goes on without volume {volume}", store, _next(world, store, then, process.left & ~bit)


def _next(world: World, store: Store, process: Process, left: int) -> Process:
    """Go on with the next member, or with the next step."""
    is_flush = process.step is Step.FLUSH
    # Bytes that one member has are gone with it.
    if left and (not is_flush or world.follows(Rule.FLUSH_ON_ALL)):
        return process._replace(left=left)
    if not is_flush:
        return process._replace(step=Step.READY, left=0)
    if store.block.length or not world.follows(Rule.FIRST_FLUSH):
        return process._replace(step=Step.ACKNOWLEDGE, left=0)
    # A takeover that found no replica could fence none, and one that finds none any more must know of a loss.
    return process._replace(step=Step.COMMIT, left=0, ends=Kind.WRITING, closes=True)


def repair(world: World, store: Store, process: Process, index: int) -> Iterator[Move]:
    """Stamp the block, to drop the failed member; without the lease the writer stops."""
    # Without the lease, a writer would open a file that a recovery has closed.
    if world.follows(Rule.LEASE) and store.block.holder != index:
        yield "finds its lease taken", store, GONE
        return
    yield stamp_block(world, store, process._replace(ends=Kind.WRITING, target=NO_TARGET), is_taking=False)
