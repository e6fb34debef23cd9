"""The rules of reseal as switches: the model follows all except those that a test drops."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from tests.model.files.state import (
    ABSENT,
    IDLE,
    NO_TARGET,
    Block,
    Faults,
    Kind,
    Process,
    Replica,
    State,
    Step,
    Store,
    byte_of,
)


class Rule(StrEnum):
    """One rule. A comment where it is followed says what fails without it."""

    FENCE_FIRST = "lengths are read after the fence"
    FENCE_PERSISTS = "a fence is durable before it is answered"
    OWN_LOG = "each stamp has a log of its own"
    LOOK = "a flush or a finish looks for its log after the sync, and answers only if it is not fenced"
    OFFSET = "an append names its offset, and a volume refuses another than its length"
    FINISH_PERSISTS = "a finish makes the bytes durable"
    COMPARE_AND_SWAP = "a commit succeeds only at the newest stamp of the block"
    LEASE = "a writer stamps the block only with its lease"
    FLUSH_ON_ALL = "a flush returns when all members have the bytes"
    FIRST_FLUSH = "the first flush of a block commits its length before it returns"
    DROP_IS_JOURNALED = "a member is dropped by a reseal only"
    MEMBERS_ONLY = "only journaled members are asked"
    GIVEN = "a log knows what its fence and its finish have given it, and shows that it is shorter"
    NOT_OLDER = "a replica older than the block's committed stamp does not count"
    UNDAMAGED = "a replica that shows damage does not count"
    LONGEST = "of the replicas that count, the longest is the block"
    COPY = "a member that is shorter gets the bytes that it lacks, or is dropped"
    FLOOR = "a replica that is shorter than the block in the journal does not count"
    ACKNOWLEDGED = "a replica that is shorter than a member knows to be acknowledged does not count"
    TARGET_FIRST = "a truncate journals its target before anything is cut"
    TARGET_STAYS = "each later reseal uses a target that is not committed"
    FINISH_BEFORE_COMMIT = "a member is finished before it is committed"
    READ_ON_ALL = "a reader sees what all members have"


class Role(StrEnum):
    """The task of a process. A crash of one that does not begin again is a pause without an end."""

    WRITER = "writer"
    """Holds the lease at first; writes, flushes, repairs its pipeline, closes."""
    RECOVERER = "recoverer"
    """Closes a file whose lease it takes for lapsed; crashes and begins again."""
    APPENDER = "appender"
    """Opens the file to append, and is its writer then."""
    TRUNCATER = "truncater"
    """Truncates a closed file to any length, once."""


class World(NamedTuple):
    """The bounds of an exploration.

    Attributes:
        roles: The processes.
        volumes: Number of volumes; all are members at first.
        stamps: Stamps that the journal gives out at most.
        unwritten: Bytes that are written at most.
        faults: How often each fault happens at most.
        length: The length of the block at first: 0 is a block that is open, otherwise it is closed.
        dropped: Rules that are not followed.
        is_new: Whether the block has no replicas yet, which its writer creates.
    """

    roles: tuple[Role, ...]
    volumes: int = 2
    stamps: int = 3
    unwritten: int = 1
    faults: Faults = Faults()
    length: int = 0
    dropped: frozenset[Rule] = frozenset()
    is_new: bool = False

    def follows(self, rule: Rule) -> bool:
        """Return whether the processes and volumes follow a rule."""
        return rule not in self.dropped

    def __str__(self) -> str:
        """Describe the bounds in one line."""
        start = f"closed, {self.length} bytes" if self.length else "new" if self.is_new else "open, empty"
        limits = ", ".join(f"{count} {name}" for name, count in self.faults._asdict().items() if count)
        return (
            f"{', '.join(self.roles)}; {self.volumes} volumes; {start}; "
            f"+{self.unwritten} bytes; {self.stamps} stamps; {limits or 'no faults'}"
        )


FIRST_STAMP: Final = 1


def closed_at_first(world: World, *, is_damaged: bool = False) -> Replica:
    """Return a replica of the block as it was closed before the first move."""
    data = tuple(byte_of(FIRST_STAMP, offset) for offset in range(world.length))
    return Replica(FIRST_STAMP, Kind.SEALED, data, len(data), is_damaged=is_damaged)


def initial(world: World) -> State:
    """Return the state in which a block of one file was created, or written and closed."""
    every = (1 << world.volumes) - 1
    holder = world.roles.index(Role.WRITER) if Role.WRITER in world.roles else -1
    block = Block(FIRST_STAMP, 0, NO_TARGET, every, world.length, bool(world.length), holder, FIRST_STAMP)
    replica = closed_at_first(world)
    if not world.length:
        replica = replica._replace(kind=Kind.WRITING)
    writer = Process(Step.READY, FIRST_STAMP, members=every, ends=Kind.WRITING)
    if world.is_new:
        replica, writer = ABSENT, writer._replace(step=Step.CREATE, left=every)
    processes = tuple(writer if role is Role.WRITER else IDLE for role in world.roles)
    return State(
        Store(block, (replica,) * world.volumes, replica.data, world.unwritten, world.faults), processes
    )
