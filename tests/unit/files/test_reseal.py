"""Reseal agrees on one length and stamp, from any state that a crash or a fault leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from lockgate.storage_core.errors import FencedError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.length import Answer, choose_length
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.protocol import NotOwnerError, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.model.files.choice import choose
from tests.model.files.rules import World
from tests.model.files.state import NO_TARGET, Block, Kind, Seen
from tests.support.commit.destination import Crash
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume

A, B, C = VolumeId("a"), VolumeId("b"), VolumeId("c")
SEALED, WRITING, SUSPECT = ReplicaState.SEALED, ReplicaState.WRITING, ReplicaState.SUSPECT
FLUSHED = b"flushed"
POINTS = [
    f"reseal.{point}.{side}"
    for point in ("stamp", "fence", "trim", "finish", "commit")
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
                volume.append(self.block, self.stamp, len(FLUSHED), b", more")

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


def test_members_are_trimmed_to_the_shortest_that_was_not_restarted(scene: Scene) -> None:
    scene.reseal()

    scene.assert_sealed(FLUSHED)


def test_a_restarted_volume_does_not_shrink_what_is_flushed(scene: Scene) -> None:
    scene.volumes[A].restart(damaged_to=2)

    scene.reseal()

    scene.assert_sealed(FLUSHED, (B, C))


def test_of_restarted_volumes_alone_the_longest_is_kept(scene: Scene) -> None:
    scene.volumes[A].restart(damaged_to=2)
    scene.volumes[B].restart()
    scene.volumes[C].restart()

    scene.reseal()

    scene.assert_sealed(FLUSHED, (B, C))


def test_restarted_volumes_alone_wait_for_the_member_that_is_out_of_reach(scene: Scene) -> None:
    scene.volumes[A].restart(damaged_to=2)
    scene.volumes[B].restart(damaged_to=3)
    scene.volumes[C].is_up = False
    said = r"no answer from c \(.*out of reach\); nothing was committed; bring these"
    with pytest.raises(StoreUnavailableError, match=said):
        scene.reseal()
    assert scene.journal.commits == []
    scene.volumes[C].is_up = True

    scene.reseal()

    scene.assert_sealed(FLUSHED, (C,))


def test_an_operator_names_a_lost_member_and_the_recovery_does_not_wait(scene: Scene) -> None:
    for name in (A, B):
        scene.volumes[name].restart()
    scene.volumes[C].is_up = False

    scene.reseal(lost={C})

    scene.assert_sealed(FLUSHED, (A, B))


def test_a_member_that_missed_the_last_commit_does_not_count(scene: Scene) -> None:
    scene.reseal()
    scene.volumes[A].stored[scene.block].stamp = scene.stamp  # an old copy of its disk

    scene.reseal()

    scene.assert_sealed(FLUSHED, (B, C))


def test_a_block_whose_replicas_were_never_created_is_empty(scene: Scene) -> None:
    for volume in scene.volumes.values():
        volume.stored.clear()

    scene.reseal()

    scene.assert_sealed(b"", ())


def test_a_block_with_an_unreachable_member_and_no_replica_elsewhere_waits(scene: Scene) -> None:
    scene.volumes[A].stored.clear()
    scene.volumes[B].stored.clear()
    scene.volumes[C].is_up = False

    with pytest.raises(StoreUnavailableError, match="no answer from c"):
        scene.reseal()


class OwnedElsewhere(MemoryVolume):
    """A volume of this machine that another process has."""

    def fence(self, block: BlockId, stamp: Stamp) -> Replica:
        raise NotOwnerError("it belongs to another process, with pid 7")


def test_the_bytes_of_a_volume_that_another_process_has_are_not_given_up(scene: Scene) -> None:
    scene.volumes[A].stored.clear()
    scene.volumes[B].stored.clear()
    scene.volumes[C] = OwnedElsewhere(stored=scene.volumes[C].stored)

    for named in ((), (C,)):
        with pytest.raises(StoreUnavailableError, match=r"pid 7.*not given up: end the process") as refused:
            scene.reseal(lost=named, given_up=named)
        assert "--lost" not in str(refused.value)
    assert scene.journal.rows[scene.block].members == (A, B, C)

    scene.volumes[B].is_up = False
    with pytest.raises(StoreUnavailableError, match=r"c: the bytes are on .*--lost"):
        scene.reseal()


def test_a_writer_is_fenced_at_each_member_once_a_reseal_has_read_its_length(scene: Scene) -> None:
    scene.reseal()

    for volume in scene.volumes.values():
        with pytest.raises(FencedError):
            volume.append(scene.block, scene.stamp, len(FLUSHED), b"late")
    with pytest.raises(FencedError):
        reseal(scene.writer, scene.volumes, scene.block, ends=WRITING)


def test_a_member_that_failed_its_writer_is_dropped_although_it_answers(scene: Scene) -> None:
    row = scene.reseal(ends=WRITING, without={B})

    assert row.members == (A, C)
    assert row.state is WRITING


def test_a_writer_whose_members_all_failed_continues_with_those_that_answer(scene: Scene) -> None:
    assert scene.reseal(ends=WRITING, without={A, B, C}).members == (A, B, C)


@pytest.mark.parametrize("call", ["stat", "fence", "trim", "finish"])
@pytest.mark.parametrize("fault", ["loses", "refuses"])
def test_a_member_without_an_answer_is_dropped(scene: Scene, call: str, fault: str) -> None:
    getattr(scene.volumes[B], fault).add(call)

    scene.reseal()

    scene.assert_sealed(FLUSHED, (A, C))


def test_a_commit_whose_answer_is_lost_is_read_back(scene: Scene) -> None:
    scene.journal.is_lossy = True

    scene.reseal()

    scene.assert_sealed(FLUSHED)
    assert len(scene.journal.commits) == 1


def test_a_truncate_that_dies_is_completed_by_the_recovery(scene: Scene) -> None:
    scene.reseal()
    with pytest.raises(Crash):
        _crashing("reseal.trim.after", 1, lambda: scene.reseal("truncate", target_bytes=2))

    scene.reseal()

    scene.assert_sealed(FLUSHED[:2])


@pytest.mark.parametrize("target", range(len(FLUSHED) + 1))
def test_a_closed_block_is_truncated_at_every_byte(scene: Scene, target: int) -> None:
    scene.reseal()

    scene.reseal(target_bytes=target)

    scene.assert_sealed(FLUSHED[:target])


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("target", [None, 3])
def test_a_reseal_that_dies_at_any_step_is_taken_up_by_the_next(
    scene: Scene, point: str, hit: int, target: int | None
) -> None:
    if target is not None:
        scene.reseal()
    try:
        _crashing(point, hit, lambda: scene.reseal("first", target_bytes=target))
    except Crash:
        pass
    else:
        assert hit > 1, "each point is passed once at least"

    journaled = point != "reseal.stamp.before"
    scene.reseal("second", ends=SEALED)

    scene.assert_sealed(FLUSHED if target is None or (not journaled and hit == 1) else FLUSHED[:target])


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
    scene.assert_sealed(FLUSHED)


def test_the_length_is_chosen_as_in_the_model() -> None:
    kinds = {Kind.SEALED: SEALED, Kind.WRITING: WRITING, Kind.SUSPECT: SUSPECT}
    one = [None, *(Seen(stamp, kind, length) for stamp in (1, 2) for kind in Kind for length in range(3))]
    names = (A, B)
    compared = 0
    for seen in product(one, one):
        for target, floor in product((NO_TARGET, 0, 1), (0, 1)):
            block = Block(2, 0, target, 0b11, floor, is_closed=False, holder=0, clock=2)
            found = {number: answer for number, answer in enumerate(seen) if answer is not None}
            expected = choose(World(()), block, found, target)
            answers = {
                names[number]: Answer(kinds[answer.kind], answer.length, is_older=answer.stamp < 2)
                for number, answer in found.items()
            }
            chosen = choose_length(
                answers,
                floor_bytes=floor,
                target_bytes=None if target == NO_TARGET else target,
                has_all_answers=len(found) == 2,
            )
            assert (chosen is None) == (expected is None)
            if chosen is not None and expected is not None:
                assert chosen.length_bytes == expected.length
                assert set(chosen.members) == {names[number] for number in expected.members}
            compared += 1
    assert compared == 19 * 19 * 6


def _crashing(point: str, hit: int, call: Callable[[], object]) -> None:
    passed = 0

    def observe(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == hit:
            raise Crash(name)

    FAILPOINTS.observer = observe
    try:
        call()
    finally:
        FAILPOINTS.observer = None
