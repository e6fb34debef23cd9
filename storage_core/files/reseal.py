"""Reseal: the one protocol behind append-open, pipeline failure, lease recovery and truncate.

Stamp the block in the journal, fence its members, choose a length from what they answer after the fence, copy
to a member what it lacks or cut it, finish, and commit by compare-and-swap. A process that dies between two
steps leaves a block that the next reseal takes up at a newer stamp. `tests/model/files` stops it at each.

Source: docs/internals/files.md, "Reseal".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from lockgate.storage_core.errors import (
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StaleReplicaError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import around
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.length import ChosenLength, choose_length
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState

COPIED_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are copied to a member at once."""


def reseal(
    blocks: JournalBlocks,
    volumes: Mapping[VolumeId, Volume],
    block: BlockId,
    *,
    ends: ReplicaState,
    target_bytes: int | None = None,
    flushed_bytes: int = 0,
    without: Collection[VolumeId] = (),
    accept_loss: bool = False,
) -> BlockRecord:
    """Bring all members of a block to one stamp and length, and commit them.

    Args:
        blocks: The file in the journal; its lease is held.
        ends: `WRITING` to append to it, `SEALED` to close it.
        target_bytes: Length to truncate it to; a target that is journaled already stays.
        flushed_bytes: Bytes that the caller knows to be acknowledged.
        without: Members that failed their writer: they are dropped if another one can stay.
        accept_loss: Take the longest intact bytes if no member that answers has all; the others are given up.

    Returns:
        The committed block.

    Raises:
        FencedError: A newer reseal has begun; this one changed nothing that counts.
        StoreUnavailableError: No member that answered has all bytes, and others did not answer. Nothing was
            committed; a later reseal begins again.
        MalformedRecordError: All members answered, and none has all bytes. Nothing was committed.
        OutcomeUnknownError: The journal gave no answer; read the block before anything else.
    """
    stamped = around("reseal.stamp", lambda: blocks.stamp(block, target_bytes))
    run = _Reseal(volumes, stamped)
    run.fence()
    floor = max(stamped.length_bytes, flushed_bytes)
    if stamped.target_bytes is None:
        floor = max(floor, blocks.acknowledged(block, stamped.stamp))
    chosen = run.choose(floor, without, accept_loss=accept_loss)
    if chosen is None:
        raise run.refusal(floor)
    keeps = tuple(volume for volume in run.replicas if volume not in without) or tuple(run.replicas)
    members = run.finish(keeps, chosen, ends)
    if keeps and not members:
        raise StoreUnavailableError(
            f"block {block}: no member of {', '.join(keeps)} could be finished at stamp {stamped.newest}; "
            "nothing was committed; try again"
        )
    state = ends if members else ReplicaState.SEALED
    return commit(blocks, BlockRecord(block, stamped.newest, members, chosen.length_bytes, state))


class _Reseal:
    """The calls of one reseal to the members; `replicas` is what they answered to the fence."""

    def __init__(self, volumes: Mapping[VolumeId, Volume], stamped: BlockRecord) -> None:
        self.replicas: dict[VolumeId, Replica] = {}
        self._volumes = volumes
        self._stamped = stamped
        self._block = stamped.block
        self._stamp = stamped.newest
        self._missed: dict[VolumeId, str] = {}
        self._unusable: dict[VolumeId, str] = {}
        self._has_none = True

    def fence(self) -> None:
        """Fence all members."""
        committed = self._stamped.stamp
        for volume in self._stamped.members:
            try:
                to = known_volume(self._volumes, volume)
                found = around("reseal.fence", partial(to.fence, self._block, self._stamp, committed))
            except ObjectNotFoundError:
                self._unusable[volume] = "it has no replica"
                continue
            except (StaleReplicaError, MalformedRecordError) as error:
                self._unusable[volume] = str(error)
            except (NotAppliedError, OutcomeUnknownError) as error:
                self._missed[volume] = str(error)
            else:
                self.replicas[volume] = found
                self._unusable[volume] = found.damage or f"it has {found.length_bytes} bytes"
            self._has_none = False

    def choose(self, floor: int, without: Collection[VolumeId], *, accept_loss: bool) -> ChosenLength | None:
        """Choose a length, of members that did not fail their writer if they can tell it."""
        target = self._stamped.target_bytes
        if self._has_none and not floor:
            return ChosenLength(0, None)  # the replicas were never created
        good = {volume: one for volume, one in self.replicas.items() if volume not in without}
        return choose_length(good, floor_bytes=floor, target_bytes=target) or choose_length(
            self.replicas, floor_bytes=floor, target_bytes=target, accept_loss=accept_loss
        )

    def finish(
        self, members: tuple[VolumeId, ...], chosen: ChosenLength, ends: ReplicaState
    ) -> tuple[VolumeId, ...]:
        """Bring members to the length, and finish them; return those for which it was done.

        One that is not is no member after the commit, and its stamp is older or not committed.
        """
        done, length = set(), chosen.length_bytes
        for volume in sorted(members, key=lambda one: one != chosen.source):  # others copy what it has
            try:
                to = known_volume(self._volumes, volume)
                self._fit(to, self.replicas[volume].length_bytes, chosen)
                around("reseal.finish", partial(to.finish, self._block, self._stamp, length, ends))
            except (NotAppliedError, OutcomeUnknownError):
                continue
            done.add(volume)
        return tuple(volume for volume in members if volume in done)

    def _fit(self, to: Volume, begin: int, chosen: ChosenLength) -> None:
        """Cut a replica to the length, or copy to it what it lacks."""
        block, stamp, length = self._block, self._stamp, chosen.length_bytes
        if begin > length:
            around("reseal.trim", partial(to.trim, block, stamp, length))
        while begin < length and chosen.source is not None:
            source = known_volume(self._volumes, chosen.source)
            data = source.read(block, stamp, begin, min(length - begin, COPIED_BYTES))
            if not data:
                raise StoreUnavailableError(f"block {block}: no bytes at {begin}, of {length}")
            around("reseal.copy", partial(to.append, block, stamp, begin, data))
            begin += len(data)

    def refusal(self, floor: int) -> NotAppliedError:
        """Return the error of a reseal that found no replica with all bytes."""
        found = (f"volume {volume}: {why}" for volume, why in sorted(self._unusable.items()))
        missed = (f"volume {volume} gave no answer: {why}" for volume, why in sorted(self._missed.items()))
        floor = max([floor, *(one.acknowledged_bytes for one in self.replicas.values())])
        target = self._stamped.target_bytes
        effect = (
            "nothing was committed"
            if target is None
            else f"that it is cut to {target} bytes is decided, and carried out by the next call"
        )
        return (StoreUnavailableError if self._missed else MalformedRecordError)(
            f"block {self._block}: at least {floor} bytes were flushed, and no volume has them all; "
            f"{'; '.join((*found, *missed))}; {effect}; bring back a volume with the bytes, or give up "
            "what is missing: `lockgate files recover --accept-loss`"
        )


def commit(blocks: JournalBlocks, wanted: BlockRecord) -> BlockRecord:
    """Commit a block at its newest stamp; a lost answer is read back. Raises `FencedError` for another."""
    try:
        return around("reseal.commit", partial(blocks.commit, wanted))
    except OutcomeUnknownError:
        is_done = blocks.record(wanted.block) == wanted
        return wanted if is_done else around("reseal.commit", partial(blocks.commit, wanted))
