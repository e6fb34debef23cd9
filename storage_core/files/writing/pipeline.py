"""A block that is being written: appended to all its members at once, repaired by a reseal when one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from typing import Final

import msgspec

from lockgate.storage_core.errors import (
    FencedError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.reseal import commit, reseal
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.gathered_bytes import GatheredBytes


class UnflushedBytes:
    """Bytes that are kept to be sent, or sent again.

    Attributes:
        begin: Offset of the first one in the block.
        sent: Offset of the first one that the members have not received.
        end: Offset after the last one.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self.sent = self.end = begin
        self._sent: list[bytes] = []
        self._unsent = GatheredBytes()

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        self._unsent.add(data)
        self.end += len(data)

    def unsent(self) -> bytes:
        """Return the bytes that the members have not received."""
        return self._unsent.joined()

    def mark_sent(self) -> None:
        """Note that all members have all bytes."""
        self._sent.append(self._unsent.take())
        self.sent = self.end

    def send_from(self, offset: int) -> None:
        """Note that the members have what is before an offset, and no more."""
        kept = b"".join([*self._sent, self._unsent.take()])
        at = offset - self.begin
        self._sent = [kept[:at]]
        self._unsent.add(kept[at:])
        self.sent = offset

    def mark_flushed(self) -> None:
        """Drop all bytes, which are durable."""
        self._sent = []
        self._unsent.clear()
        self.begin = self.sent = self.end


REPAIRS: Final = 3
"""Reseals during one call; then the call fails, and the next one tries again."""


Then = Callable[[Volume, BlockId, Stamp, int], object]
"""What a call asks of a member that has all bytes: of which block, at which stamp, up to which offset."""


class Pipeline:
    """The block at the end of a file, and the bytes that are not durable on all of its members yet.

    Attributes:
        record: The block at its last commit.
    """

    def __init__(
        self,
        blocks: JournalBlocks,
        volumes: Mapping[VolumeId, Volume],
        record: BlockRecord,
        threads: Executor,
    ) -> None:
        """Continue a block whose members are finished for appends at its stamp."""
        self.record = record
        self._blocks = blocks
        self._volumes = volumes
        self._threads = threads
        self._unflushed = UnflushedBytes(record.length_bytes)
        self._failed: set[VolumeId] = set()
        self._is_whole = True

    def create(self) -> None:
        """Create the replicas of a block that was just added.

        A process that took the file over before they were there could fence none of them: it is found by the
        commit of the first flush.
        """
        block, stamp = self.record.block, self.record.stamp
        self._try("create", lambda volume: volume.create(block, stamp))

    @property
    def length_bytes(self) -> int:
        """Return the length of the block, with the bytes that were not sent yet."""
        return self._unflushed.end

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes that no member has received."""
        return self._unflushed.end - self._unflushed.sent

    @property
    def unflushed_bytes(self) -> int:
        """Return the number of bytes that are kept here until they are durable."""
        return self._unflushed.end - self._unflushed.begin

    def append(self, data: bytes | memoryview) -> None:
        """Take bytes; `send` and `flush` bring them to the members."""
        self._unflushed.add(data)

    def send(self) -> None:
        """Send what was not sent.

        Raises:
            FencedError: Another process has taken the block over.
            StoreUnavailableError: No member could be kept; the bytes stay here for the next call.
        """
        self._until_whole("append", lambda *_: None)

    def flush(self) -> None:
        """Make all bytes durable on all members; raises as `send` does.

        The first flush of a block is committed before it returns: only then is it known that no other process
        has taken the block over while it had no replicas, and that replicas which are gone are a loss.
        """
        self._until_whole("flush", _flush)
        end = self._unflushed.end
        if end and not self.record.length_bytes:
            self.record = commit(self._blocks, msgspec.structs.replace(self.record, length_bytes=end))
        if end > self._unflushed.begin:
            self._acknowledge(end)
        self._unflushed.mark_flushed()

    def _acknowledge(self, end: int) -> None:
        block, stamp = self.record.block, self.record.stamp
        for volume in self.record.members:
            with suppress(NotAppliedError, OutcomeUnknownError, FencedError):  # all members have the bytes
                known_volume(self._volumes, volume).acknowledge(block, stamp, end)
        self._blocks.note_acknowledged(block, stamp, end)

    def seal(self) -> BlockRecord:
        """Seal all members at one length, and return what is to be committed; raises as `send` does."""
        if self.unsent_bytes:
            self.send()
        self._until_whole("finish", _seal)
        self._unflushed.mark_flushed()
        return msgspec.structs.replace(self.record, length_bytes=self.length_bytes, state=ReplicaState.SEALED)

    def _until_whole(self, name: str, then: Then) -> None:
        """Bring all members what was not sent yet, and then more, until all that are left have done it."""
        for _ in range(REPAIRS):
            if not self._is_whole:
                self._repair()
            if self._is_whole and self._try(name, self._bring(then)):
                self._unflushed.mark_sent()
                return
        raise StoreUnavailableError(
            f"block {self.record.block}: {name} failed after {REPAIRS} reseals, at last on "
            f"{', '.join(sorted(self._failed))}; the bytes are kept, call again"
        )

    def _bring(self, then: Then) -> Callable[[Volume], None]:
        """Return the call of each member. It does not change: one may be asked again after the next call."""
        block, stamp, offset = self.record.block, self.record.stamp, self._unflushed.sent
        data = self._unflushed.unsent()

        def call(volume: Volume) -> None:
            if data:
                volume.append(block, stamp, offset, data)
            then(volume, block, stamp, offset + len(data))

        return call

    def _try(self, name: str, call: Callable[[Volume], object]) -> bool:
        """Call all members at once; return whether all did it, and note the others."""
        FAILPOINTS.hit(f"pipeline.{name}.before")
        first, *others = self.record.members
        waiting = [self._submit(volume, call) for volume in others]
        outcomes = [self._call(first, call), *(future.result() for future in waiting)]
        FAILPOINTS.hit(f"pipeline.{name}.after")
        self._failed = set()
        for volume, error in zip(self.record.members, outcomes, strict=True):
            if isinstance(error, FencedError):
                raise error
            if error is not None:
                self._failed.add(volume)
        self._is_whole = not self._failed
        return self._is_whole

    def _submit(self, volume: VolumeId, call: Callable[[Volume], object]) -> Future[Exception | None]:
        try:
            return self._threads.submit(copy_context().run, self._call, volume, call)
        except RuntimeError:  # Python is ending: its executors take no more calls
            done: Future[Exception | None] = Future()
            done.set_result(self._call(volume, call))
            return done

    def _call(self, volume: VolumeId, call: Callable[[Volume], object]) -> Exception | None:
        try:
            to = known_volume(self._volumes, volume)
            try:
                call(to)
            except OutcomeUnknownError:
                call(to)  # each call of a pipeline has the same effect twice as once
        except (NotAppliedError, OutcomeUnknownError, FencedError) as error:
            return error
        return None

    def _repair(self) -> None:
        """Drop the members that failed: a new stamp, a length, and the bytes after it once more."""
        if self.record.members:  # else an earlier repair found no replica, and failed behind that
            self.record = reseal(
                self._blocks,
                self._volumes,
                self.record.block,
                ends=ReplicaState.WRITING,
                flushed_bytes=self._unflushed.begin,
                without=self._failed,
            )
        if not self.record.members:
            # No replica of it was ever created: it stays empty, and the next block takes the bytes.
            self.record = self._blocks.add()
            self._unflushed.send_from(0)
            self.create()
            return
        self._unflushed.send_from(self.record.length_bytes)
        self._is_whole, self._failed = True, set()


def _flush(volume: Volume, block: BlockId, stamp: Stamp, end: int) -> None:
    FAILPOINTS.hit("pipeline.member-flush.before")
    durable = volume.flush(block, stamp)
    if durable < end:
        raise StoreUnavailableError(f"block {block}: {durable} bytes are durable")


def _seal(volume: Volume, block: BlockId, stamp: Stamp, end: int) -> None:
    volume.finish(block, stamp, end, ReplicaState.SEALED)
