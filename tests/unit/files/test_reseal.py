"""Reseal agrees on one length and stamp, from any state that a crash or a fault leaves."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from lockgate.storage_core.errors import FencedError, MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.length import choose_length, readable_length
from lockgate.storage_core.files.reseal import commit, reseal
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.model.files.choice import choose, readable
from tests.model.files.rules import World
from tests.model.files.state import NO_TARGET, Block, Seen
from tests.support.commit.destination import crash_at
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume

A, B, C = VolumeId("a"), VolumeId("b"), VolumeId("c")
SEALED, WRITING = ReplicaState.SEALED, ReplicaState.WRITING
FLUSHED, MORE = b"flushed", b", more"
WHOLE = FLUSHED + MORE
POINTS = [
    f"reseal.{point}.{side}"
    for point in ("stamp", "fence", "trim", "copy", "finish", "commit")
    for side in ("before", "after")
]


class Scene:
    """A block on three volumes: `FLUSHED` is durable on all, and more was received by two of them."""

    def __init__(self) -> None:
        self.volumes = {name: MemoryVolume() for name in (A, B, C)}
        self.journal = MemoryJournal((A, B, C))
        self.writer = MemoryBlocks(self.journal, "writer")
        row = self.writer.add()
        self.block, self.stamp = row.block, row.stamp
        for name, volume in self.volumes.items():
            volume.create(self.block, self.stamp)
            volume.append(self.block, self.stamp, 0, FLUSHED)
            volume.flush(self.block, self.stamp)
            if name != C:
                volume.append(self.block, self.stamp, len(FLUSHED), MORE)

    def flush(self) -> None:
        """Commit the first flush."""
        row = self.journal.rows[self.block]
        commit(self.writer, msgspec.structs.replace(row, length_bytes=len(FLUSHED)))

    def cut(self, name: VolumeId, length: int) -> None:
        """Cut a replica without a trace."""
        stored = self.volumes[name].stored[self.block]
        del stored.data[length:]
        stored.durable = length

    def commits(self) -> int:
        return len(self.journal.commits)

    def reseal(self, holder: str = "recovery", **options: object) -> BlockRecord:
        blocks = MemoryBlocks(self.journal, holder)
        return reseal(blocks, self.volumes, self.block, **{"ends": SEALED, **options})  # type: ignore[arg-type]

    def assert_sealed(self, data: bytes, members: tuple[VolumeId, ...] = (A, B, C)) -> None:
        row = self.journal.rows[self.block]
        assert (row.length_bytes, row.members, row.state) == (len(data), members, SEALED)
        assert row.pending is None
        assert row.target_bytes is None
        for name in members:
            assert self.volumes[name].read(self.block, row.stamp, 0, 100) == data
            stored = self.volumes[name].stored[self.block]
            assert (stored.state, stored.durable) == (SEALED, len(stored.data))


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("kept", [0, 2])
def test_a_damaged_replica_is_repaired_from_another_one(scene: Scene, kept: int) -> None:
    for name in (A, B):
        scene.volumes[name].restart(damaged_to=kept)

    scene.reseal()

    scene.assert_sealed(FLUSHED)


def test_a_replica_that_was_cut_without_a_trace_shrinks_nothing(scene: Scene) -> None:
    for name in (A, B):
        scene.cut(name, 2)

    scene.reseal()

    scene.assert_sealed(FLUSHED)


def test_a_member_out_of_reach_is_not_waited_for_if_another_one_is_whole(scene: Scene) -> None:
    scene.volumes[A].restart(damaged_to=2)
    scene.volumes[B].is_up = False

    scene.reseal()

    scene.assert_sealed(FLUSHED, (A, C))


def test_damage_on_each_member_that_answers_is_told_and_waits_for_the_others(scene: Scene) -> None:
    scene.flush()
    scene.volumes[A].restart(damaged_to=2)
    scene.volumes[B].stored.clear()
    scene.volumes[C].is_up = False
    said = "volume a: damaged at 2; volume b: it has no replica; volume c gave no answer: .*; nothing was"
    with pytest.raises(StoreUnavailableError, match=said):
        scene.reseal()
    assert scene.commits() == 1
    scene.volumes[C].is_up = True

    scene.reseal()

    scene.assert_sealed(FLUSHED, (A, C))


def test_damage_on_all_members_is_told_until_an_operator_accepts_the_loss(scene: Scene) -> None:
    scene.flush()
    scene.volumes[A].restart(damaged_to=2)
    scene.volumes[B].restart(damaged_to=3)
    scene.volumes[C].stored.clear()
    for _ in range(2):
        with pytest.raises(MalformedRecordError, match=r"at least 7 bytes were flushed.*--accept-loss"):
            scene.reseal()
    assert scene.commits() == 1

    scene.reseal(accept_loss=True)

    scene.assert_sealed(FLUSHED[:3], (A, B))


def test_replicas_that_are_all_gone_are_a_loss_if_the_block_was_flushed(scene: Scene) -> None:
    scene.flush()
    for volume in scene.volumes.values():
        volume.stored.clear()
    with pytest.raises(MalformedRecordError, match="volume a: it has no replica"):
        scene.reseal()

    scene.reseal(accept_loss=True)

    scene.assert_sealed(b"", ())


@pytest.mark.parametrize("knows", ["a member", "the journal", "the caller"])
def test_what_is_known_to_be_acknowledged_is_not_given_up(scene: Scene, knows: str) -> None:
    scene.volumes[B].is_up = scene.volumes[C].is_up = False
    scene.cut(A, 2)
    if knows == "a member":
        scene.volumes[A].acknowledge(scene.block, scene.stamp, len(FLUSHED))
    elif knows == "the journal":
        scene.writer.note_acknowledged(scene.block, scene.stamp, len(FLUSHED))
        scene.journal.renew()
    flushed = len(FLUSHED) if knows == "the caller" else 0

    with pytest.raises(StoreUnavailableError, match="at least 7 bytes were flushed"):
        scene.reseal(flushed_bytes=flushed)


def test_a_block_with_an_unreachable_member_and_no_replica_elsewhere_waits(scene: Scene) -> None:
    scene.volumes[A].stored.clear()
    scene.volumes[B].stored.clear()
    scene.volumes[C].is_up = False

    with pytest.raises(StoreUnavailableError, match="volume c gave no answer"):
        scene.reseal()


def test_a_writer_is_fenced_at_each_member_once_a_reseal_has_read_its_length(scene: Scene) -> None:
    scene.reseal()

    for volume in scene.volumes.values():
        with pytest.raises(FencedError):
            volume.append(scene.block, scene.stamp, len(WHOLE), b"late")
    with pytest.raises(FencedError):
        reseal(scene.writer, scene.volumes, scene.block, ends=WRITING)


def test_a_member_that_failed_its_writer_is_dropped_although_it_answers(scene: Scene) -> None:
    row = scene.reseal(ends=WRITING, without={B})

    assert row.members == (A, C)
    assert row.state is WRITING


def test_a_writer_whose_members_all_failed_continues_with_those_that_answer(scene: Scene) -> None:
    assert scene.reseal(ends=WRITING, without={A, B, C}).members == (A, B, C)


@pytest.mark.parametrize("call", ["fence", "append", "finish"])
@pytest.mark.parametrize("fault", ["loses", "refuses"])
def test_a_member_without_an_answer_is_dropped(scene: Scene, call: str, fault: str) -> None:
    getattr(scene.volumes[C], fault).add(call)

    scene.reseal()

    scene.assert_sealed(WHOLE, (A, B))


@pytest.mark.parametrize("hit", range(3))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("target", [None, 3])
def test_a_reseal_that_dies_at_any_step_is_taken_up_by_the_next(
    scene: Scene, point: str, hit: int, target: int | None
) -> None:
    if target is not None:
        scene.reseal()
    if not crash_at(hit, lambda: scene.reseal("first", target_bytes=target), point):
        assert hit or point.split(".")[1] == ("trim" if target is None else "copy")

    journaled = point != "reseal.stamp.before"
    scene.reseal("second", ends=SEALED)

    scene.assert_sealed(WHOLE if target is None or (not journaled and not hit) else WHOLE[:target])


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_of_two_concurrent_reseals_exactly_one_commits(scene: Scene, point: str, hit: int) -> None:
    passed = 0

    def interrupt(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == hit and name == point:
            FAILPOINTS.observer = None
            scene.reseal("second")

    FAILPOINTS.observer = interrupt
    try:
        scene.reseal("first")
    except FencedError:
        assert len(scene.journal.commits) == 1
    finally:
        FAILPOINTS.observer = None

    stamps = [row.stamp for row in scene.journal.commits]
    assert stamps == sorted(set(stamps))
    scene.assert_sealed(WHOLE)


def test_the_lengths_are_chosen_as_in_the_model() -> None:
    one = [
        None,
        *(
            Seen(stamp, length, shows, known)
            for stamp in (2, 3)
            for length in range(3)
            for shows in (False, True)
            for known in (0, 2)
        ),
    ]
    names = (A, B)
    compared = 0
    for seen in product(one, one):
        found = {number: answer for number, answer in enumerate(seen) if answer is not None}
        replicas = {
            names[number]: Replica(
                BlockId(7),
                Stamp(1, answer.stamp),
                WRITING,
                answer.length,
                answer.length,
                answer.acknowledged,
                "damaged" if answer.shows else "",
            )
            for number, answer in found.items()
        }
        for target, floor in product((NO_TARGET, 0, 1), (0, 1)):
            block = Block(2, 0, target, 0b11, floor, is_closed=False, holder=0, clock=2)
            wanted = None if target == NO_TARGET else target
            expected = choose(World(()), block, found, target)
            chosen = choose_length(replicas, floor_bytes=floor, target_bytes=wanted)
            assert (chosen and chosen.length_bytes) == (expected and expected.length)
            assert (chosen and chosen.source) == (expected and names[expected.source])
            record = BlockRecord(BlockId(7), Stamp(1, 2), names, floor, WRITING, target_bytes=wanted)
            assert readable_length(record, replicas) == readable(World(()), block, found)
            compared += 1
    assert compared == 25 * 25 * 6
