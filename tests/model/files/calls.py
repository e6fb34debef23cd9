"""The calls of a volume: what each does to a replica, or that it refuses."""

from __future__ import annotations

from enum import IntEnum

from tests.model.files.rules import Rule, World
from tests.model.files.state import Kind, Process, Replica, Store, put


class Answer(IntEnum):
    """How a call ended."""

    DONE = 0
    FAILED = 1
    """No answer, or a refusal that concerns this replica only."""
    FENCED = 2
    """The replica has a newer stamp."""


Result = tuple[Answer, Store]


def create(store: Store, volume: int, stamp: int) -> Result:
    """Create an empty replica, unless there is one."""
    replica = store.replicas[volume]
    if not replica.is_up or replica.stamp > stamp:
        return _refusal(replica, stamp), store
    return Answer.DONE, put(store, volume, replica._replace(stamp=stamp, persisted=stamp, exists=True))


def append(world: World, store: Store, volume: int, process: Process) -> Result:
    """Append the last byte that the writer has written."""
    stamp = process.stamp
    replica = store.replicas[volume]
    if not replica.is_up:
        return Answer.FAILED, store
    if world.follows(Rule.FENCE_REFUSES) and replica.stamp != stamp:
        return _refusal(replica, stamp), store
    # A fence whose restart forgot it would let an old writer in; so would bytes that the restart lost.
    takes = {Kind.WRITING} if world.follows(Rule.SUSPECT_REFUSES) else {Kind.WRITING, Kind.SUSPECT}
    if replica.kind not in takes:
        return Answer.FAILED, store
    # A replica that lost bytes would have the next ones in their place.
    if world.follows(Rule.OFFSET) and len(replica.data) != process.length - 1:
        return Answer.FAILED, store
    return Answer.DONE, put(store, volume, replica._replace(data=(*replica.data, stamp)))


def flush(store: Store, volume: int, stamp: int, length: int) -> Result:
    """Make the bytes durable."""
    replica = store.replicas[volume]
    if not replica.is_up or replica.stamp != stamp or len(replica.data) < length:
        return _refusal(replica, stamp), store
    return Answer.DONE, put(store, volume, replica._replace(durable=len(replica.data)))


def fence(world: World, store: Store, volume: int, stamp: int) -> Result:
    """Refuse all older stamps from here on."""
    replica = store.replicas[volume]
    if not replica.is_up or replica.stamp > stamp:
        return _refusal(replica, stamp), store
    persisted = stamp if world.follows(Rule.FENCE_PERSISTS) else replica.persisted
    return Answer.DONE, put(store, volume, replica._replace(stamp=stamp, persisted=persisted))


def trim(world: World, store: Store, volume: int, stamp: int, length: int) -> Result:
    """Cut a replica; one that is shorter is refused."""
    replica = store.replicas[volume]
    if not _is_open_to(world, replica, stamp) or len(replica.data) < length:
        return _refusal(replica, stamp), store
    cut = replica._replace(data=replica.data[:length], durable=min(replica.durable, length))
    return Answer.DONE, put(store, volume, cut)


def finish(world: World, store: Store, volume: int, process: Process) -> Result:
    """Seal a replica of a reseal, or let it take appends at the reseal's stamp."""
    stamp, length = process.stamp, process.length
    replica = store.replicas[volume]
    if not _is_open_to(world, replica, stamp) or len(replica.data) != length:
        return _refusal(replica, stamp), store
    durable = length if world.follows(Rule.FINISH_PERSISTS) else replica.durable
    finished = replica._replace(stamp=stamp, kind=process.ends, durable=durable, persisted=stamp)
    return Answer.DONE, put(store, volume, finished)


def _is_open_to(world: World, replica: Replica, stamp: int) -> bool:
    return replica.is_up and (replica.stamp == stamp or not world.follows(Rule.FENCE_REFUSES))


def _refusal(replica: Replica, stamp: int) -> Answer:
    return Answer.FENCED if replica.is_up and replica.stamp > stamp else Answer.FAILED
