"""The journal's block, the replicas and the memory of each process: small, frozen, hashable.

A set of volumes is a bit mask. The value of a byte shows the stamp and the offset at which it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

Data = tuple[int, ...]
NO_TARGET: Final = -1
TAKER: Final = -2
"""The process that makes the move: a step does not know its number."""


class Kind(IntEnum):
    """The state of a replica."""

    SEALED = 1
    WRITING = 2


class Replica(NamedTuple):
    """One replica and its volume: its newest log. What is written to an older log is not read.

    Attributes:
        stamp: The newest stamp that fenced it.
        kind: Its state.
        data: The bytes that it received; of a damaged one, those before the damage.
        durable: Number of bytes that survive a restart.
        is_up: Whether its volume can be reached.
        is_damaged: Whether a fault took durable bytes from it since the last commit.
        shows: Whether the volume knows of the damage.
        hides: Whether the volume cannot know: bytes are cut off that were neither given nor acknowledged.
        persisted: The stamp that survives a restart.
        exists: Whether it was created, and is not lost.
        acknowledged: Number of bytes that its writer has said to be on all members.
        given: Number of bytes that it had when it was fenced, trimmed or finished last.
    """

    stamp: int
    kind: Kind
    data: Data
    durable: int
    is_up: bool = True
    is_damaged: bool = False
    shows: bool = False
    hides: bool = False
    persisted: int = 1
    exists: bool = True
    acknowledged: int = 0
    given: int = 0


ABSENT: Final = Replica(0, Kind.WRITING, (), 0, persisted=0, exists=False)


class Block(NamedTuple):
    """The block in the journal.

    Attributes:
        stamp: Its committed generation stamp.
        pending: Stamp of the newest `StampBlock`; 0 if no reseal is under way.
        target: The target of a truncate that is not committed yet, or `NO_TARGET`.
        members: The volumes that hold it.
        length: Its length at the last commit.
        is_closed: Whether it is sealed.
        holder: The process that has the lease.
        clock: The newest stamp that the journal gave out.
    """

    stamp: int
    pending: int
    target: int
    members: int
    length: int
    is_closed: bool
    holder: int
    clock: int


class Faults(NamedTuple):
    """How often each fault may happen from here on.

    Attributes:
        restarts: Restarts of a volume: bytes that are not durable may go.
        damages: Bytes that are damaged or cut off, and replicas that are lost.
        absences: Volumes that go out of everyone's reach until they return.
        rollbacks: Volumes of a file that was closed at first which come back as they were then.
        lost: Calls of one process that fail without or with their effect.
    """

    restarts: int = 0
    damages: int = 0
    absences: int = 0
    rollbacks: int = 0
    lost: int = 0


class Store(NamedTuple):
    """What outlives a process.

    Attributes:
        flushed: The bytes that a flush has promised to its caller, cut by a journaled truncate.
        unwritten: Bytes that writers may write from here on.
        cut: Stamp of the newest truncate or hidden loss. A flush at an older stamp that returns later came
            before it.
    """

    block: Block
    replicas: tuple[Replica, ...]
    flushed: Data
    unwritten: int
    faults: Faults
    cut: int = 0


class Step(IntEnum):
    """The call that a process makes next."""

    IDLE = 0
    READY = 1
    APPEND = 2
    FLUSH = 3
    STAMP = 4
    LOOK = 5
    FENCE = 6
    FIT = 7
    FINISH = 8
    COMMIT = 9
    GONE = 10
    CREATE = 11
    ACKNOWLEDGE = 12


class Seen(NamedTuple):
    """What a volume answered about its replica; the stamp is that before the fence.

    Attributes:
        hides: See `Replica`; no process knows it.
        is_damaged: See `Replica`; no process knows it.
    """

    stamp: int
    length: int
    shows: bool
    acknowledged: int
    hides: bool = False
    is_damaged: bool = False


NO_REPLICA: Final = Seen(0, -1, shows=False, acknowledged=0)


class Process(NamedTuple):
    """One process: its next call and what it has read, which may be stale.

    Attributes:
        stamp: The stamp of its calls.
        left: Volumes that the present step has still to call.
        members: The volumes of its pipeline; in a reseal, those that it keeps.
        known: The most bytes that an answer to its fence knew to be acknowledged.
        is_told: Whether one of these members was undamaged, or none hid a loss.
        source: The volume whose replica has the bytes that others lack.
        data: Of a writer, the bytes of the block.
        seen: The answer of each volume to the fence.
        length: The length that it chose; of a writer, what it has written.
        ends: The state in which its reseal leaves the replicas.
        target: The length that it truncates to, or `NO_TARGET`.
        closes: Whether it commits at the stamp of its pipeline, without a new one: a close or a first flush.
    """

    step: Step
    stamp: int = 0
    left: int = 0
    members: int = 0
    seen: tuple[Seen | None, ...] = ()
    length: int = 0
    ends: Kind = Kind.SEALED
    target: int = NO_TARGET
    closes: bool = False
    known: int = 0
    is_told: bool = False
    source: int = 0
    data: Data = ()


IDLE: Final = Process(Step.IDLE)
GONE: Final = Process(Step.GONE)


class State(NamedTuple):
    """The world at one moment."""

    store: Store
    processes: tuple[Process, ...]


def byte_of(stamp: int, offset: int) -> int:
    """Return a byte."""
    return stamp << 4 | offset


def volumes(mask: int) -> Iterator[int]:
    """Yield the volumes of a set."""
    number = 0
    while mask:
        if mask & 1:
            yield number
        mask >>= 1
        number += 1


def put(store: Store, volume: int, replica: Replica) -> Store:
    """Return the store with one replica changed."""
    return store._replace(replicas=(*store.replicas[:volume], replica, *store.replicas[volume + 1 :]))


def seen_of(replica: Replica) -> Seen:
    """Return what the volume of a replica tells."""
    return Seen(
        replica.stamp,
        len(replica.data),
        replica.shows,
        replica.acknowledged,
        replica.hides,
        replica.is_damaged,
    )


def holds(replica: Replica, data: Data) -> bool:
    """Return whether a replica begins with these bytes, durably."""
    return replica.durable >= len(data) and replica.data[: len(data)] == data
