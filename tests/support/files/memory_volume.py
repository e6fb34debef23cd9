"""A volume in memory that goes out of reach, restarts and loses bytes when a test says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    MalformedRecordError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StaleReplicaError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes.protocol import Usage, VolumeId, check_limit
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stamp import Stamp

MEMORY = VolumeId("memory")


@dataclass
class Stored:
    """One replica.

    Attributes:
        older: Its durable bytes at the stamps before.
        acknowledged: Bytes that all members have.
        given: Bytes that it had when it was fenced, cut or finished last.
        damage: What is wrong with the bytes behind `data`.
        rotten: Offset from which reads find bytes whose checksums do not hold.
    """

    stamp: Stamp
    state: ReplicaState = ReplicaState.WRITING
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    older: dict[Stamp, bytes] = field(default_factory=dict)
    acknowledged: int = 0
    given: int = 0
    damage: str = ""
    rotten: int | None = None
    token: str = field(default_factory=new_token)

    def told(self) -> str:
        """Return what is known to be wrong."""
        least = max(self.acknowledged, self.given)
        return self.damage or (f"{len(self.data)} of {least} bytes" if len(self.data) < least else "")


@dataclass
class MemoryVolume:
    """A `Volume`.

    Attributes:
        is_up: Whether it can be reached.
        loses: Names of calls whose next answer is lost.
        refuses: Names of calls that fail next, without an effect.
    """

    is_up: bool = True
    loses: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    capacity_bytes: int = 1_000_000
    stored: dict[BlockId, Stored] = field(default_factory=dict)
    id: VolumeId = MEMORY

    def claim(self, journal: str) -> None:
        pass

    def answers(self) -> bool:
        return self.is_up

    def close(self) -> None:
        pass

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        stored = self.stored.get(block)
        if self.is_up and stored is not None and stored.stamp == stamp:
            stored.acknowledged = length_bytes

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        self._begin("create")
        if block not in self.stored:
            self.stored[block] = Stored(stamp)
        self._at(block, stamp)
        return self._end("create", block)

    def store(self, block: BlockId, stamp: Stamp, pieces: Iterable[bytes]) -> None:
        self._begin("store")
        data = b"".join(pieces)
        if block in self.stored and self.stored[block].stamp > stamp:
            raise FencedError(f"block {block} has {self.stored[block].stamp}, not {stamp}")
        state, length = ReplicaState.SEALED, len(data)
        self.stored[block] = Stored(stamp, state, bytearray(data), durable=length, given=length)
        self._end("store", block)

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        self._begin("append")
        stored = self._at(block, stamp)
        if stored.state is not ReplicaState.WRITING:
            raise ConflictError(f"block {block} is {stored.state}")
        stands = bytes(stored.data[offset : offset + len(data)])
        if offset > len(stored.data) or data[: len(stands)] != stands:
            raise InvalidInputError(f"block {block}: other bytes at {offset}, or a gap")
        stored.data += data[len(stands) :]
        return self._end("append", block).length_bytes

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        self._begin("flush")
        stored = self._at(block, stamp)
        stored.durable = len(stored.data)
        return self._end("flush", block).durable_bytes

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        self._begin("read")
        stored = self.stored.get(block)
        if stored is None or stamp not in {stored.stamp, *stored.older}:
            raise StaleReplicaError(f"block {block}: not at stamp {stamp}")
        data = stored.older.get(stamp, bytes(stored.data[: stored.durable]))
        if (damage := stored.told()) and offset + size > len(data):
            raise MalformedRecordError(f"block {block}, volume {self.id}: {damage}")
        if stored.rotten is not None and offset + size > stored.rotten:
            raise MalformedRecordError(f"block {block}, volume {self.id}: the checksum does not hold")
        return data[offset : offset + size]

    def stat(self, block: BlockId) -> Replica | None:
        self._begin("stat")
        return self._end("stat", block) if block in self.stored else None

    def fence(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Replica:
        self._begin("fence")
        stored = self.stored.get(block)
        if stored is None:
            raise ObjectNotFoundError(f"block {block}")
        if stored.stamp > stamp:
            raise FencedError(f"block {block} has {stored.stamp}")
        if stored.stamp < committed:
            raise StaleReplicaError(f"block {block} has {stored.stamp}, older than {committed}")
        if stored.stamp < stamp:
            stored.older[stored.stamp] = bytes(stored.data[: stored.durable])
            stored.stamp, stored.state = stamp, ReplicaState.WRITING
            stored.given = max(stored.given, len(stored.data))
        return self._end("fence", block)

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        self._begin("trim")
        stored = self._at(block, stamp)
        if len(stored.data) < length_bytes:
            raise ConflictError(f"block {block} is shorter than {length_bytes}")
        del stored.data[length_bytes:]
        stored.durable = min(stored.durable, length_bytes)
        stored.acknowledged = min(stored.acknowledged, length_bytes)
        stored.given = min(stored.given, length_bytes)
        stored.older = {stamp: data[:length_bytes] for stamp, data in stored.older.items()}
        return self._end("trim", block)

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        self._begin("finish")
        stored = self._at(block, stamp)
        if len(stored.data) != length_bytes:
            raise ConflictError(f"block {block} is not {length_bytes} bytes long")
        stored.state, stored.durable, stored.damage = state, length_bytes, ""
        stored.given = length_bytes
        return self._end("finish", block)

    def delete(self, block: BlockId, stamp: Stamp, token: str | None = None) -> bool:
        self._begin("delete")
        stored = self.stored.get(block)
        if stored is None or stored.stamp > stamp or token not in {None, stored.token}:
            return False
        del self.stored[block]
        return True

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        self._begin("replicas")
        check_limit(limit)
        blocks = sorted(block for block in self.stored if after is None or block > after)
        return tuple(self._end("replicas", block) for block in blocks[:limit])

    def usage(self) -> Usage:
        self._begin("usage")
        used = sum(len(stored.data) for stored in self.stored.values())
        return Usage(used_bytes=used, free_bytes=max(self.capacity_bytes - used, 0))

    def restart(self, *, damaged_to: int | None = None) -> None:
        """Restart: bytes that are not durable are gone; with `damaged_to` what is behind it is damaged."""
        for stored in self.stored.values():
            if stored.state is ReplicaState.WRITING:
                del stored.data[stored.durable :]
                if damaged_to is not None and damaged_to < stored.durable:
                    del stored.data[damaged_to:]
                    stored.damage = f"damaged at {damaged_to}"
                stored.durable = len(stored.data)

    def lose(self, block: BlockId, length: int | None, *, is_shown: bool) -> None:
        """Lose a replica, or its durable bytes from an offset on."""
        stored = self.stored.get(block)
        if stored is None or (length is not None and length >= stored.durable):
            return
        if length is None:
            del self.stored[block]
            return
        del stored.data[length:]
        stored.durable = length
        stored.older = {stamp: data[:length] for stamp, data in stored.older.items()}
        if is_shown:
            stored.damage = f"damaged at {length}"

    def _at(self, block: BlockId, stamp: Stamp) -> Stored:
        stored = self.stored.get(block)
        if stored is None:
            raise ObjectNotFoundError(f"block {block}")
        if stored.stamp > stamp:
            raise FencedError(f"block {block} has {stored.stamp}, not {stamp}")
        if stored.stamp < stamp:
            raise ConflictError(f"block {block} has {stored.stamp}, not {stamp}")
        return stored

    def _begin(self, call: str) -> None:
        if not self.is_up:
            raise StoreUnavailableError(f"{call}: the volume is out of reach")
        if call in self.refuses:
            self.refuses.discard(call)
            raise StoreUnavailableError(f"{call} was refused on purpose")

    def _end(self, call: str, block: BlockId) -> Replica:
        if call in self.loses:
            self.loses.discard(call)
            raise OutcomeUnknownError(f"{call}: the answer was lost on purpose")
        stored = self.stored[block]
        return Replica(
            block,
            stored.stamp,
            stored.state,
            len(stored.data),
            stored.durable,
            stored.acknowledged,
            stored.told(),
            stored.token,
        )
