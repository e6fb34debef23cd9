"""Reseal agrees on one length, from any replicas that faults leave; and the lengths that readers see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockgate.storage_core.errors import MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.files import Files, FileWriter
from lockgate.storage_core.files.length import ChosenLength, choose_length, readable_length
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.support.files.faulty_volumes import FaultyDirectory
from tests.support.files.file_world import NAMES, FileWorld

A, B, C = NAMES
PATH, FIRST, SECOND, MORE = "/a.log", b"fl", b"ushed", b", more"
FLUSHED = FIRST + SECOND
SEALED, WRITING = ReplicaState.SEALED, ReplicaState.WRITING
Harm = Callable[[FaultyDirectory, BlockId], object]


def left(
    world: FileWorld, *, acknowledges: bool = True, ends: bool = True
) -> tuple[BlockId, Files, FileWriter]:
    """Flush two pieces, the first of which is committed; by default the process ends then, and its lease."""
    for volume in world.opened.values():
        volume.refuses = set() if acknowledges else {"acknowledge"}
    files = world.process(block_bytes=100)
    writer = files.create(PATH)
    for piece in (FIRST, SECOND):
        writer.write(piece)
        writer.flush()
    if ends:
        files.close()
        world.lapse()
    return world.blocks()[0], files, writer


def is_damaged(volume: FaultyDirectory, block: BlockId) -> None:
    volume.flip(block, FIRST)


def is_cut(volume: FaultyDirectory, block: BlockId) -> None:
    """Cut a log without a trace, unless the bytes were noted as acknowledged."""
    volume.cut(block, 1)


@pytest.mark.parametrize("harm", [is_damaged, is_cut, FaultyDirectory.lose])
@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_replica_with_too_few_bytes_shrinks_nothing_and_gets_them_from_another_one(
    world: FileWorld, harm: Harm, acknowledges: bool
) -> None:
    block, *_ = left(world, acknowledges=acknowledges)
    for name in (A, B):
        harm(world.opened[name], block)
    world.files.recover(PATH)
    world.check_sealed(PATH, FLUSHED)
    assert world.records(PATH)[0].members == ((C,) if harm is FaultyDirectory.lose else (A, B, C))


def test_a_member_out_of_reach_is_not_waited_for_if_another_one_is_whole(world: FileWorld) -> None:
    block, *_ = left(world)
    is_damaged(world.opened[A], block)
    world.opened[B].is_up = False
    world.files.recover(PATH)
    world.check_sealed(PATH, FLUSHED)
    assert world.records(PATH)[0].members == (A, C)


def test_damage_on_each_member_that_answers_is_told_and_waits_for_the_others(world: FileWorld) -> None:
    block, *_ = left(world)
    is_damaged(world.opened[A], block)
    world.opened[B].lose(block)
    world.opened[C].is_up = False
    said = (
        "volume-0: .*damaged at byte.*; volume volume-1: it has no replica; volume volume-2 gave no answer: "
    )
    with pytest.raises(StoreUnavailableError, match=said):
        world.files.recover(PATH)
    assert world.records(PATH)[0].length_bytes == len(FIRST)
    world.opened[C].is_up = True
    world.files.recover(PATH)
    world.check_sealed(PATH, FLUSHED)


@pytest.mark.parametrize(
    ("harms", "kept"),
    [([is_damaged, is_cut, FaultyDirectory.lose], FIRST), ([FaultyDirectory.lose] * 3, b"")],
)
def test_damage_on_all_members_is_told_until_an_operator_accepts_the_loss(
    world: FileWorld, harms: list[Harm], kept: bytes
) -> None:
    block, *_ = left(world)
    for name, harm in zip(NAMES, harms, strict=True):
        harm(world.opened[name], block)
    for _ in range(2):
        with pytest.raises(MalformedRecordError, match=r"bytes were flushed.*--accept-loss"):
            world.files.recover(PATH)
    assert world.files.recover(PATH, accept_loss=True) == len(kept)
    world.check_sealed(PATH, kept)


@pytest.mark.parametrize("knows", ["a damaged member", "the journal", "the writer"])
def test_what_is_known_to_be_acknowledged_is_not_given_up(world: FileWorld, knows: str) -> None:
    """The member that answers is cut without a trace."""
    block, files, writer = left(world, acknowledges=False, ends=False)
    one, other, away = world.opened.values()
    away.is_up = False
    if knows == "a damaged member":
        one.opened.acknowledge(block, world.records(PATH)[0].stamp, len(FLUSHED))
        is_damaged(one, block)
    else:
        one.is_up = False
    if knows == "the journal":
        files.renewer.renew()
    is_cut(other, block)
    writer.write(MORE)
    if knows != "the writer":
        files.close()
        world.lapse()
    with pytest.raises(StoreUnavailableError, match="at least 7 bytes were flushed"):
        writer.flush() if knows == "the writer" else world.files.recover(PATH)


def test_a_block_with_an_unreachable_member_and_no_replica_elsewhere_waits(world: FileWorld) -> None:
    files = world.process()
    files.create(PATH).write(MORE)
    files.close()
    world.lapse()
    for name in (A, B):
        world.opened[name].lose(world.blocks()[0])
    world.opened[C].is_up = False
    with pytest.raises(StoreUnavailableError, match="volume volume-2 gave no answer"):
        world.files.recover(PATH)


@pytest.mark.parametrize("call", ["fence", "append", "finish"])
@pytest.mark.parametrize("fault", ["loses", "refuses"])
def test_a_member_without_an_answer_is_dropped(world: FileWorld, call: str, fault: str) -> None:
    block, *_ = left(world)
    for name in (A, B):
        world.opened[name].append(block, world.records(PATH)[0].stamp, len(FLUSHED), MORE)
    getattr(world.opened[C], fault).add(call)
    world.files.recover(PATH)
    world.check_sealed(PATH, FLUSHED + MORE)
    assert world.records(PATH)[0].members == (A, B)


def replica(
    length: int, damage: str = "", known: int = 0, stamp: int = 2, *, is_fenced: bool = False
) -> Replica:
    at = Stamp(1, stamp)
    return Replica(BlockId(7), at, WRITING, length, length, known, damage, is_fenced=is_fenced)


CHOSEN = {
    "of whole ones the longest": ([replica(3), replica(5)], {}, (5, B)),
    "no damaged one": ([replica(3), replica(5, "bad")], {}, (3, A)),
    "none below what the journal knows": ([replica(3), replica(5, "bad")], {"floor_bytes": 4}, None),
    "none below what a damaged one knows": ([replica(3), replica(4, "bad", 4)], {}, None),
    "none below what a whole one knows": ([replica(3), replica(5, known=4)], {}, (5, B)),
    "the target": ([replica(3), replica(5, known=5)], {"floor_bytes": 5, "target_bytes": 2}, (2, B)),
    "no damaged one for a target": ([replica(3), replica(5, "bad")], {"target_bytes": 2}, (2, A)),
    "none below the target": ([replica(3), replica(5, "bad")], {"target_bytes": 4}, None),
    "the longest if a loss is accepted": (
        [replica(3, "bad"), replica(1)],
        {"floor_bytes": 5, "accept_loss": True},
        (3, A),
    ),
    "less than the target if a loss is accepted": (
        [replica(3), replica(1)],
        {"target_bytes": 4, "accept_loss": True},
        (3, A),
    ),
    "a whole one though a loss is accepted": ([replica(3, "bad"), replica(1)], {"accept_loss": True}, (1, B)),
    "none of none": ([], {}, None),
    "nothing of none if a loss is accepted": ([], {"accept_loss": True}, (0, None)),
}


@pytest.mark.parametrize("what", CHOSEN)
def test_the_length_that_a_reseal_chooses(what: str) -> None:
    replicas, options, expected = CHOSEN[what]
    given = {"floor_bytes": 0, "target_bytes": None, **options}
    chosen = choose_length(dict(zip(NAMES, replicas, strict=False)), **given)  # type: ignore[arg-type]
    assert chosen == (None if expected is None else ChosenLength(*expected))


READABLE = {
    "what all members have": ([replica(3), replica(4)], {}, 3),
    "what is committed and no more of one of two": ([replica(1)], {}, 1),
    "an error where one of two has more": ([replica(3)], {}, None),
    "what one of two knows": ([replica(3, known=2)], {}, 2),
    "what a damaged one knows": ([replica(3, "bad", 2), replica(4)], {}, 2),
    "an error where one is damaged": ([replica(1, "bad"), replica(1)], {}, None),
    "no older replica": ([replica(1, stamp=1), replica(3)], {}, None),
    "what a renewal has stored": ([replica(2)], {"acknowledged_bytes": 2}, 2),
    "more than a renewal has stored": ([replica(3), replica(3)], {"acknowledged_bytes": 2}, 3),
    "what all have, all of them fenced": ([replica(3, stamp=3), replica(3, stamp=3)], {}, 3),
    "what all have, one of them fenced": ([replica(3), replica(3, stamp=3)], {}, 3),
    "an error where a fenced one has another length": ([replica(3), replica(4, stamp=3)], {}, None),
    "an error where only a fenced one answers": ([replica(1, stamp=3)], {}, None),
    "an error in the middle of a fence": ([replica(3, is_fenced=True), replica(3)], {}, None),
    "what is known in the middle of a fence": ([replica(3, known=3, is_fenced=True), replica(3)], {}, 3),
    "an error where none answers": ([], {}, None),
    "the target": ([], {"target_bytes": 0}, 0),
    "what is committed of a sealed one": ([], {"state": SEALED}, 1),
    "no sealed one that is resealed": ([], {"state": SEALED, "pending": Stamp(1, 3)}, None),
}


@pytest.mark.parametrize("what", READABLE)
def test_the_length_that_readers_see(what: str) -> None:
    replicas, options, expected = READABLE[what]
    given = {"state": WRITING, **options}
    record = BlockRecord(BlockId(7), Stamp(1, 2), (A, B), 1, **given)  # type: ignore[arg-type]
    found: dict[VolumeId, Replica] = dict(zip(NAMES, replicas, strict=False))
    assert readable_length(record, found) == expected
