"""A volume that is lost for good: its blocks are copied or named, and it is never served again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.member_marks import DropMember
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import Block, RegisteredVolume
from lockgate.storage_core.files.namespace.volume_urls import read_lost, usable_urls
from lockgate.storage_core.files.replicas import lost_volumes
from lockgate.storage_core.files.replicas.replica_check import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT
from tests.support.files.memory_world import NAMES, SPARE, MemoryWorld, world_with_a_spare_volume
from tests.support.journal.checkpoints import JournalWorld

GONE = NAMES[0]


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    """Three volumes with each block, a spare one, and a file on the first volume only, which is away."""
    with world_with_a_spare_volume(journals, capacity_bytes=1_000_000) as world:
        with world.process(GONE).create("/single.log") as writer:
            writer.write(TEXT)
        world.files.upkeep.report()
        world.volumes[GONE].is_up = False
        yield world


@pytest.mark.parametrize("page", [1, 500])
def test_a_lost_volume_is_dropped_and_its_blocks_are_copied_or_named(
    world: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_volumes, "PAGE", page)
    before = world.entries()
    planned = world.files.upkeep.declare_lost(GONE, dry_run=True)
    assert (planned.members, planned.dropped, len(planned.without)) == (4, 0, 3)
    assert world.entries() == before

    done = world.files.upkeep.declare_lost(GONE)

    assert (done.members, done.dropped, done.unsealed) == (4, 4, 0)
    assert [(one.path, one.length_bytes) for one in done.without] == [
        ("/single.log", 8),
        ("/single.log", 8),
        ("/single.log", 4),
    ]
    assert world.entries() == before + 1 + 7
    assert world.files.upkeep.declare_lost(GONE).dropped == 0
    assert world.entries() == before + 9  # it was declared once more, and nothing is left to drop
    assert {one.volume for one in world.files.upkeep.re_replicate()} == {SPARE}
    assert all(world.members(one.block) == [GONE] for one in done.without)
    assert world.files.open("/a.log").read() == TEXT
    with pytest.raises(StoreUnavailableError):
        world.files.open("/single.log").read()
    findings = list(world.files.check().findings())
    assert [(one.problem, one.path) for one in findings] == [(Problem.LOST, "/single.log")] * 3
    world.files.delete("/single.log")
    assert world.problems() == set()
    assert world.journals.verify().findings == ()


def test_a_volume_that_comes_back_is_never_served_and_its_replicas_are_deleted(world: MemoryWorld) -> None:
    world.files.upkeep.declare_lost(GONE)
    list(world.files.upkeep.re_replicate())
    world.volumes[GONE].is_up = True
    world.journal.apply(RegisterVolume(volume=GONE, url="https://volume-0.example:2"))
    assert read_lost(world.journal) == {GONE}
    assert GONE not in usable_urls(world.journal)
    assert {one.volume for one in world.files.upkeep.report()} == {*NAMES[1:], SPARE}
    assert {one.volume for one in world.files.upkeep.verify()} == {*NAMES[1:], SPARE}
    with pytest.raises(StoreUnavailableError):
        world.files.open("/single.log").read()
    assert world.problems() == {Problem.LEFT_OVER, Problem.LOST}

    assert world.files.upkeep.delete_left_over().deleted == 4
    assert len(world.volumes[GONE].stored) == 3  # the only ones of their blocks are kept

    world.files.upkeep.declare_found(GONE)
    world.files.upkeep.report()
    assert world.files.open("/single.log").read() == TEXT
    assert world.problems() == set()


@pytest.mark.parametrize("page", [1, 500])
def test_the_only_replicas_of_blocks_whose_volumes_were_all_declared_lost_are_kept_and_taken_back(
    world: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_volumes, "PAGE", page)
    for name in NAMES:
        world.volumes[name].is_up = False
        world.files.upkeep.declare_lost(name)
    first, last = NAMES[0], NAMES[-1]
    world.volumes[first].is_up = True
    stored = dict(world.volumes[first].stored)
    assert world.files.upkeep.delete_left_over().deleted == 0
    assert world.volumes[first].stored == stored
    with pytest.raises(StoreUnavailableError):
        world.files.open("/a.log").read()

    world.files.upkeep.declare_found(last)
    with pytest.raises(StoreUnavailableError, match=f"volume {last} is in use again.*run this again"):
        world.files.upkeep.take_back(last)
    world.files.upkeep.declare_found(first)
    world.files.upkeep.report()
    taken = world.files.upkeep.take_back(first)

    assert taken == 4  # those of /single.log have it still as their member
    assert world.files.open("/a.log").read() == TEXT
    assert world.files.open("/single.log").read() == TEXT
    assert world.files.upkeep.take_back(first) == 0
    assert world.journals.verify().findings == ()


def test_a_volume_that_missed_a_change_of_a_block_is_not_taken_back(world: MemoryWorld) -> None:
    world.files.upkeep.declare_lost(GONE)
    with world.process(*NAMES[1:]).append("/b.log") as writer:
        writer.write(b"d")
    for name in NAMES[1:]:
        world.volumes[name].is_up = False
        world.files.upkeep.declare_lost(name)
    world.volumes[GONE].is_up = True
    world.files.upkeep.declare_found(GONE)
    assert world.files.upkeep.take_back(GONE) == 3  # the blocks of /a.log
    assert world.files.open("/a.log").read() == TEXT
    with pytest.raises(StoreUnavailableError):
        world.files.open("/b.log").read()


def test_a_death_at_any_step_is_completed_by_the_next_call(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_volumes, "PAGE", 1)
    world.files.upkeep.declare_lost(GONE)
    for die_at in itertools.count():
        world.files.upkeep.declare_found(GONE)
        world.volumes[GONE].is_up = True
        with world.process(*NAMES).create(f"/{die_at}.log") as writer:
            writer.write(TEXT)
        world.volumes[GONE].is_up = False
        steps = itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if point.startswith("lost.") and next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = die
        try:
            world.files.upkeep.declare_lost(GONE)
        except Crash:
            is_over = False
        else:
            is_over = True
        FAILPOINTS.observer = None
        assert world.files.open(f"/{die_at}.log").read() == TEXT
        done = world.files.upkeep.declare_lost(GONE)
        assert (done.members, len(done.without)) == (done.dropped, 3)
        assert {volume for _, volume in world.faults()} == {GONE}
        if is_over:
            assert die_at == 6  # before and after each of three blocks
            return


def test_an_open_file_is_recovered_without_the_lost_volume(world: MemoryWorld) -> None:
    world.volumes[GONE].is_up = True
    writer = world.process(*NAMES[:2]).create("/open.log")
    writer.write(b"flushed")
    writer.flush()
    inode = world.files.status("/open.log").inode
    for name in NAMES[:2]:
        world.volumes[name].restart()
    world.volumes[GONE].is_up = False
    assert world.files.upkeep.declare_lost(GONE).unsealed == 1
    assert world.files.recovery.lapses_in_s(inode) > 0
    world.clock.sleep(200)
    assert world.files.recover("/open.log") == 7
    assert world.files.open("/open.log").read() == b"flushed"
    assert world.files.upkeep.drop_lost()[0].unsealed == 0
    assert GONE not in world.members(world.blocks()[-1])


@pytest.mark.parametrize("is_found", [True, False])
def test_flushed_bytes_that_only_a_lost_volume_has_are_given_up_by_name_only(
    world: MemoryWorld, *, is_found: bool
) -> None:
    world.volumes[GONE].is_up = True
    ended = world.process(GONE)
    writer = ended.create("/open.log")
    writer.write(b"flushed")
    writer.flush()
    ended.close()
    world.volumes[GONE].is_up = False
    done = world.files.upkeep.declare_lost(GONE)
    assert (done.unsealed, [one.path for one in done.without][-1]) == (1, "/open.log")
    assert "/open.log" in {one.path for one in world.files.check().findings()}
    inode = world.files.status("/open.log").inode
    assert world.files.recovery.lapses_in_s(inode) > 0
    world.clock.sleep(200)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="recover PATH --lost VOLUME"):
            world.files.recover("/open.log")
        with pytest.raises(StoreUnavailableError):
            world.files.open("/open.log")
        world.clock.sleep(200)

    if is_found:
        world.volumes[GONE].is_up = True
        world.files.upkeep.declare_found(GONE)
        assert world.files.recover("/open.log") == len(b"flushed")
        assert world.files.open("/open.log").read() == b"flushed"
    else:
        assert world.files.recover("/open.log", lost=[GONE]) == 0
        assert world.files.open("/open.log").read() == b""


def test_a_lost_volume_holds_nothing_back(world: MemoryWorld) -> None:
    world.files.upkeep.declare_lost(GONE)
    world.files.delete("/single.log")
    assert world.files.remove_deleted().kept_blocks == 0
    assert world.files.upkeep.reporting().volumes == ()
    world.files.upkeep.forget(GONE)
    with world.journal.reading() as reading:
        assert GONE not in {row.volume for row in reading.where(RegisteredVolume, {})}


def test_a_lost_volume_holds_no_block_back_that_was_deleted_or_cut_off_before(world: MemoryWorld) -> None:
    world.volumes[GONE].is_up = True
    writer = world.process(*NAMES).create("/open.log")
    writer.write(TEXT)
    writer.flush()
    world.files.truncate("/a.log", 3)
    world.files.delete("/b.log")
    world.files.delete("/open.log")
    world.volumes[GONE].is_up = False
    assert world.files.remove_deleted().kept_blocks > 0
    world.files.upkeep.declare_lost(GONE)
    assert world.files.remove_deleted().kept_blocks == 0
    with pytest.raises(FencedError):
        writer.close()
    world.files.delete("/a.log")
    world.files.delete("/single.log")
    assert world.files.remove_deleted().kept_blocks == 0
    world.files.upkeep.forget(GONE)
    with pytest.raises(InvalidInputError, match=f"no volume {GONE}"):
        world.files.upkeep.forget(GONE)


def test_unknown_volumes_and_members_of_volumes_in_use_are_refused(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    for declare in (world.files.upkeep.declare_lost, world.files.upkeep.declare_found):
        with pytest.raises(InvalidInputError, match="no volume none"):
            declare(VolumeId("none"))
    with pytest.raises(ConflictError, match="stays registered"):
        world.files.upkeep.forget(GONE)
    with world.journal.reading() as reading:
        row = reading.get(Block, first)
    assert row is not None
    drop = DropMember(block=first, volume=GONE, generation=row.stamp)
    with pytest.raises(ConflictError, match="not declared lost"):
        world.journal.apply(drop)
    world.files.upkeep.declare_lost(GONE)
    assert set(world.faults().values()) == {Fault.LOST}
    with pytest.raises(ConflictError, match="is no member"):
        world.journal.apply(drop)
