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
    if not replica.is_up or not replica.exists:
        return Answer.FAILED, store
    if world.follows(Rule.OWN_LOG) and replica.stamp != stamp:
        # Its log is fenced: the write succeeds and is not read, and its flush will say so.
        return (Answer.DONE if replica.stamp > stamp else Answer.FAILED), store
    # A replica that lost bytes would have the next ones in their place.
    if replica.kind is not Kind.WRITING or (
        world.follows(Rule.OFFSET) and len(replica.data) != process.length - 1
    ):
        return Answer.FAILED, store
    return Answer.DONE, put(store, volume, replica._replace(data=(*replica.data, process.data[-1])))


def flush(world: World, store: Store, volume: int, stamp: int, length: int) -> Result:
    """Make the bytes durable, then look for the log."""
    replica = store.replicas[volume]
    if replica.is_up and replica.stamp > stamp and not world.follows(Rule.LOOK):
        return Answer.DONE, store
    if not _is_mine(replica, stamp) or len(replica.data) < length:
        return _refusal(replica, stamp), store
    return Answer.DONE, put(store, volume, replica._replace(durable=len(replica.data)))


def acknowledge(store: Store, volume: int, stamp: int, length: int) -> Store:
    """Note what all members have; a log that is fenced keeps what it knew."""
    replica = store.replicas[volume]
    if replica.stamp != stamp:
        return store
    is_short = len(replica.data) < length
    noted = replica._replace(
        acknowledged=length, shows=replica.shows or is_short, hides=replica.hides and not is_short
    )
    return put(store, volume, noted)


def fence(world: World, store: Store, volume: int, stamp: int) -> Result:
    """Begin a log at a newer stamp; it takes appends, and knows what the one before it knew."""
    replica = store.replicas[volume]
    is_stale = replica.stamp < store.block.stamp and world.follows(Rule.NOT_OLDER)
    if not replica.is_up or replica.stamp > stamp or is_stale:
        return _refusal(replica, stamp), store
    persisted = stamp if world.follows(Rule.FENCE_PERSISTS) else replica.persisted
    begun = replica._replace(stamp=stamp, persisted=persisted, kind=Kind.WRITING, given=len(replica.data))
    return Answer.DONE, put(store, volume, begun)


def fit(world: World, store: Store, volume: int, process: Process) -> Result:
    """Cut a replica to the length of a reseal, or copy to it what it lacks."""
    replica, source = store.replicas[volume], store.replicas[process.source]
    length = process.length
    if not _is_mine(replica, process.stamp):
        return _refusal(replica, process.stamp), store
    data, hides = replica.data[:length], replica.hides
    if len(data) < length and world.follows(Rule.COPY):
        if not _is_mine(source, process.stamp) or len(source.data) < length:
            return Answer.FAILED, store
        data, hides = (*data, *source.data[len(data) : length]), hides or source.hides
    known = min(replica.acknowledged, length)
    durable = min(replica.durable, length)
    given = min(replica.given, length)
    fitted = replica._replace(data=data, durable=durable, acknowledged=known, given=given, hides=hides)
    return Answer.DONE, put(store, volume, fitted)


def finish(world: World, store: Store, volume: int, process: Process) -> Result:
    """Seal a replica of a reseal, or let it take appends; its damage is repaired."""
    stamp, length = process.stamp, process.length
    replica = store.replicas[volume]
    if replica.is_up and replica.stamp > stamp and not world.follows(Rule.LOOK):
        return Answer.DONE, store
    if not _is_mine(replica, stamp) or (len(replica.data) != length and world.follows(Rule.COPY)):
        return _refusal(replica, stamp), store
    durable = length if world.follows(Rule.FINISH_PERSISTS) else replica.durable
    hides = replica.hides or (not process.closes and store.replicas[process.source].hides)
    finished = replica._replace(
        kind=process.ends,
        durable=durable,
        persisted=stamp,
        shows=False,
        hides=hides,
        given=len(replica.data),
    )
    return Answer.DONE, put(store, volume, finished)


def _is_mine(replica: Replica, stamp: int) -> bool:
    return replica.is_up and replica.exists and replica.stamp == stamp


def _refusal(replica: Replica, stamp: int) -> Answer:
    return Answer.FENCED if replica.is_up and replica.stamp > stamp else Answer.FAILED
