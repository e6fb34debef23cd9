"""The length of a block, chosen from what its members answered; readers choose as a reseal does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import ReplicaState


class Answer(NamedTuple):
    """What one member answered.

    Attributes:
        state: The state of its replica.
        length_bytes: Number of bytes that count: for a reseal those received, for a reader the durable ones.
        is_older: Whether the replica missed the block's last commit.
    """

    state: ReplicaState
    length_bytes: int
    is_older: bool = False


class ChosenLength(NamedTuple):
    """A length, and the members that have as many bytes; the others are dropped."""

    length_bytes: int
    members: tuple[VolumeId, ...]


def choose_length(
    answers: Mapping[VolumeId, Answer],
    *,
    floor_bytes: int,
    target_bytes: int | None,
    has_all_answers: bool,  # noqa: ARG001
) -> ChosenLength | None:
    """Choose the length of a block, or None if it must wait for more members.

    Args:
        answers: Of the journaled members, those that answered with a replica.
        floor_bytes: Length of the block at its last commit; a shorter replica has lost bytes.
        target_bytes: Target of a truncate that is journaled and not committed.
        has_all_answers: Whether each member answered, if only that it has no replica.

    Source: docs/internals/files.md, "Which length".
    """
    least = floor_bytes if target_bytes is None else target_bytes
    counting = {
        volume: answer
        for volume, answer in answers.items()
        if answer.length_bytes >= least and not answer.is_older
    }
    sealed, writing = (
        [answer.length_bytes for answer in counting.values() if answer.state is state]
        for state in (ReplicaState.SEALED, ReplicaState.WRITING)
    )
    if not counting:
        return None
    # A flush is on all of them, so the shortest has all that was flushed.
    length = min(sealed or writing) if target_bytes is None else target_bytes
    keeps = (volume for volume, answer in counting.items() if answer.length_bytes >= length)
    return ChosenLength(length, tuple(keeps))
