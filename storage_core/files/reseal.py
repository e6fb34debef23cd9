"""Reseal: the one protocol behind append-open, pipeline failure, lease recovery and truncate.

Stamp the block in the journal, fence its members, choose a length from what they answer after the fence,
trim, finish, and commit by compare-and-swap. A process that dies between two steps leaves a block that the
next reseal takes up at a newer stamp; `tests/model/files` explores each order of the steps.

Source: docs/internals/files.md, "Reseal".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from lockgate.storage_core.errors import (
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, Blocks, known_volume
from lockgate.storage_core.files.length import Answer, ChosenLength, choose_length
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp

T = TypeVar("T")


def reseal(
    blocks: Blocks,
    volumes: Mapping[VolumeId, Volume],
    block: BlockId,
    *,
    ends: ReplicaState,
    target_bytes: int | None = None,
    without: Collection[VolumeId] = (),
    lost: Collection[VolumeId] = (),
    given_up: Collection[VolumeId] = (),
) -> BlockRecord:
    """Bring all members of a block to one stamp and length, and commit them.

    Args:
        blocks: The file in the journal; its lease is held.
        volumes: The volumes that can be tried.
        block: The block.
        ends: `WRITING` to append to it, `SEALED` to close it.
        target_bytes: Length to truncate it to; a target that is journaled already stays.
        without: Members that failed their writer: they are dropped if another one can stay.
        lost: Members that an operator has named as lost: the reseal does not wait for them.
        given_up: Those of them whose bytes are given up, if no other member has any. A volume of this machine
            that another process owns is neither lost nor given up: its bytes are there.

    Returns:
        The committed block.

    Raises:
        FencedError: A newer reseal has begun; this one changed nothing that counts.
        StoreUnavailableError: Too few members answered. Nothing was committed; a later reseal begins again.
        OutcomeUnknownError: The journal gave no answer; read the block before anything else.
    """
    stamped = _at("stamp", lambda: blocks.stamp(block, target_bytes))
    stamp = stamped.newest
    run = _Reseal(volumes, stamped, stamp)
    answers, missed = run.fence()
    lost, given_up = set(lost), set(given_up)
    chosen = choose_length(
        answers,
        floor_bytes=stamped.length_bytes,
        target_bytes=stamped.target_bytes,
        has_all_answers=missed.keys() <= lost,
    )
    if chosen is None and not answers and missed.keys() <= given_up and stamped.length_bytes == 0:
        chosen = ChosenLength(0, ())  # no member has a replica, or its bytes are given up
    if chosen is None:
        raise StoreUnavailableError(_waits(stamped, answers, missed))
    keeps = tuple(volume for volume in chosen.members if volume not in without) or chosen.members
    members = run.finish(run.trim(keeps, chosen.length_bytes), chosen.length_bytes, ends)
    if keeps and not members:
        raise StoreUnavailableError(
            f"block {block}: no member of {', '.join(keeps)} could be finished at stamp {stamp}; "
            "nothing was committed; try again"
        )
    state = ends if members else ReplicaState.SEALED
    return commit(blocks, BlockRecord(block, stamp, members, chosen.length_bytes, state))


class _Reseal:
    """The calls of one reseal to the members."""

    def __init__(self, volumes: Mapping[VolumeId, Volume], stamped: BlockRecord, stamp: Stamp) -> None:
        self._volumes = volumes
        self._stamped = stamped
        self._stamp = stamp

    def fence(self) -> tuple[dict[VolumeId, Answer], dict[VolumeId, LockgateError]]:
        """Fence all members; return what they answered, and why others gave no answer."""
        answers: dict[VolumeId, Answer] = {}
        missed: dict[VolumeId, LockgateError] = {}
        for volume in self._stamped.members:
            try:
                answer = self._fence(volume)
            except (NotAppliedError, OutcomeUnknownError) as error:
                missed[volume] = error
            else:
                if answer is not None:
                    answers[volume] = answer
        return answers, missed

    def _fence(self, volume: VolumeId) -> Answer | None:
        block, stamp, to = self._stamped.block, self._stamp, known_volume(self._volumes, volume)
        before = to.stat(block)  # the fence replaces the stamp that shows whether it missed a commit
        if before is None:
            return None
        try:
            fenced = _at("fence", lambda: to.fence(block, stamp, self._stamped.stamp))
        except ObjectNotFoundError:
            return None
        return Answer(fenced.state, fenced.length_bytes, is_older=before.stamp < self._stamped.stamp)

    def trim(self, members: tuple[VolumeId, ...], length: int) -> tuple[VolumeId, ...]:
        """Cut the members; return those that were cut."""
        block, stamp = self._stamped.block, self._stamp
        return self._each(members, lambda to: _at("trim", lambda: to.trim(block, stamp, length).length_bytes))

    def finish(self, members: tuple[VolumeId, ...], length: int, ends: ReplicaState) -> tuple[VolumeId, ...]:
        """Finish the members; return those that were finished."""
        block, stamp = self._stamped.block, self._stamp
        return self._each(
            members, lambda to: _at("finish", lambda: to.finish(block, stamp, length, ends).length_bytes)
        )

    def _each(self, members: tuple[VolumeId, ...], call: Callable[[Volume], int]) -> tuple[VolumeId, ...]:
        done: list[VolumeId] = []
        for volume in members:
            try:
                call(known_volume(self._volumes, volume))
            except (NotAppliedError, OutcomeUnknownError):
                continue  # it is no member after the commit, and its stamp is older or not committed
            done.append(volume)
        return tuple(done)


def commit(blocks: Blocks, wanted: BlockRecord) -> BlockRecord:
    """Commit a block at its newest stamp; a lost answer is read back.

    Args:
        blocks: The file in the journal.
        wanted: The block as it is after the commit.

    Raises:
        FencedError: The block has a newer stamp.
    """

    def write() -> BlockRecord:
        return blocks.commit(
            wanted.block,
            wanted.stamp,
            length_bytes=wanted.length_bytes,
            members=wanted.members,
            state=wanted.state,
        )

    try:
        return _at("commit", write)
    except OutcomeUnknownError:
        found = blocks.record(wanted.block)
        return found if found == wanted else _at("commit", write)


def _waits(
    stamped: BlockRecord, answers: Mapping[VolumeId, Answer], missed: Mapping[VolumeId, LockgateError]
) -> str:
    said = ", ".join(
        f"{volume}: {answer.state}, {answer.length_bytes} bytes" for volume, answer in answers.items()
    )
    why = ", ".join(f"{volume} ({error})" for volume, error in sorted(missed.items()))
    effect = (
        "nothing was committed"
        if stamped.target_bytes is None
        else f"that it is cut to {stamped.target_bytes} bytes is decided, and carried out by the next call"
    )
    remedies = [
        "bring these volumes back; if they will not return, give up what only they have: "
        "`lockgate files recover PATH --lost VOLUME`"
    ]
    return (
        f"block {stamped.block}: the answers of its members ({said or 'none'}) do not tell its length; "
        f"no answer from {why or 'none'}; {effect}; {'; '.join(remedies)}"
    )


def _at(point: str, call: Callable[[], T]) -> T:
    """Make a call between two failpoints."""
    FAILPOINTS.hit(f"reseal.{point}.before")
    result = call()
    FAILPOINTS.hit(f"reseal.{point}.after")
    return result
