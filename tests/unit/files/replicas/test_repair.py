"""A repair marks what is wrong, copies what has too few replicas, and deletes what no block needs."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.errors import ConflictError, MalformedRecordError, SafeModeError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.members import AddMember, MarkReplica
from lockgate.storage_core.files.namespace.rows import Block, DamagedReplica
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.replicas.repair import Repaired
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import NAMES, SPARE, TEXT, FileWorld, at

FIRST, SECOND = b"a" * 1000, b"b" * 1000


@pytest.fixture
def filled(world: FileWorld) -> FileWorld:
    return world.fill(has_spare=True)


def repair(world: FileWorld) -> Repaired:
    return world.files.upkeep.repair()


def mark(
    world: FileWorld, block: BlockId, volume: VolumeId, fault: Fault | None = Fault.CORRUPT
) -> MarkReplica:
    with world.journal.reading() as reading:
        row = reading.get(Block, block)
    assert row is not None
    return MarkReplica(block=block, volume=volume, generation=row.stamp, fault=fault)


@pytest.mark.parametrize("page", [1, 2, 500], indirect=True)
@pytest.mark.usefixtures("page")
def test_what_differs_is_taken_out_of_use_and_copied_and_a_dry_run_changes_nothing(filled: FileWorld) -> None:
    first, second, third, last = filled.blocks()
    filled.opened[NAMES[0]].lose(first)
    filled.opened[NAMES[0]].put(second, Stamp(1, 1), b"old")
    filled.opened[NAMES[1]].cut(third, 1)
    filled.opened[NAMES[2]].flip(last, b"abc")
    assert len(filled.findings()) == 4
    before = len(filled.entries())

    planned = filled.files.upkeep.repair(dry_run=True)
    assert (planned.marked, planned.deleted, planned.problems) == (4, 0, [])
    assert len(filled.entries()) == before
    assert filled.faults() == {}
    lines: list[str] = []
    done = filled.files.upkeep.repair(note=lines.append)

    assert (done.replicas, done.read_bytes, done.marked, done.copied, done.problems) == (11, 0, 4, 4, [])
    assert len(filled.entries()) == before + 8
    assert [line.partition(":")[0] for line in lines[:4]] == ["lost", "stale", "corrupt", "corrupt"]
    assert (done.left_over, done.deleted) == (0, 0)  # they are, from the copies on
    assert filled.members(first) == [NAMES[1], NAMES[2], SPARE]
    assert filled.opened[SPARE].stat(first).state is ReplicaState.SEALED
    again = repair(filled)
    assert (again.marked, again.copied, again.left_over, again.deleted) == (0, 0, 3, 3)
    assert filled.problems() == set()
    assert filled.files.open("/a.log").read() == TEXT
    with filled.journal.reading() as reading:
        assert reading.where(DamagedReplica, {}) == []
    assert filled.journals.verify().findings == ()


def test_the_last_good_replica_of_a_block_is_named_and_never_taken_out_of_use(filled: FileWorld) -> None:
    first, *_ = filled.blocks()
    for name in NAMES:
        filled.opened[name].flip(first, TEXT[:8])
    assert len(filled.findings()) == 3
    done = filled.files.upkeep.repair(accept_loss=True)
    assert done.marked == 2
    assert "/a.log" in done.problems[0]
    assert set(filled.faults()) == {(first, NAMES[0]), (first, NAMES[1])}
    with pytest.raises(ConflictError, match="no other member"):
        filled.journal.apply(mark(filled, first, NAMES[2]))
    with pytest.raises(ConflictError, match="marked so already"):
        filled.journal.apply(mark(filled, first, NAMES[0]))
    for name in NAMES:
        filled.opened[name].put(first, filled.records("/a.log")[0].stamp, TEXT[:8])
    assert filled.files.upkeep.repair().released == 2  # corrupt ones are read again
    assert (filled.faults(), filled.problems()) == ({}, set())


def test_a_block_that_is_opened_meanwhile_is_left_to_its_writer(filled: FileWorld) -> None:
    *_, last = filled.blocks()
    filled.opened[NAMES[0]].flip(last, b"abc")
    assert filled.findings() == [(last, Problem.CORRUPT, "/b.log")]
    others = filled.process(*NAMES[1:])

    def append() -> None:
        with others.append("/b.log") as writer:
            writer.write(b"d")

    with at("repair.mark.before", append):
        assert repair(filled).marked == 0
    assert filled.faults() == {}
    assert filled.files.open("/b.log").read() == b"abcd"


def test_a_marked_member_is_left_out_of_appends_and_removals(filled: FileWorld) -> None:
    first, *_, last = filled.blocks()
    for block in (first, last):
        filled.journal.apply(mark(filled, block, NAMES[0]))
    filled.opened[NAMES[0]].is_up = False
    with filled.files.append("/b.log") as writer:
        writer.write(b"d")
    assert filled.members(last) == [*NAMES[1:]]
    filled.files.delete("/a.log")
    assert filled.files.remove_deleted().kept_blocks == 2  # those that it has good replicas of
    assert first not in filled.blocks()


def test_a_replica_is_made_again_on_its_volume_if_no_other_can_take_it(filled: FileWorld) -> None:
    first, second, *_ = filled.blocks()
    filled.opened[SPARE].is_up = False
    filled.opened[NAMES[0]].lose(first)
    filled.opened[NAMES[0]].cut(second, 1)

    done = repair(filled)

    assert done.copied == 2
    assert filled.members(first) == filled.members(second) == [*NAMES]
    assert filled.process(NAMES[0]).open("/a.log").read(16) == TEXT[:16]


def test_a_block_that_lost_a_member_in_a_pipeline_gets_another_one(filled: FileWorld) -> None:
    *_, last = filled.blocks()
    filled.opened[NAMES[0]].is_up = False
    with filled.files.append("/b.log") as writer:
        writer.write(b"d")
        writer.flush()
        assert repair(filled).copied == 0  # it is being written
    assert repair(filled).copied == 1
    assert filled.members(last) == [*NAMES[1:], SPARE]
    filled.opened[NAMES[1]].is_up = filled.opened[NAMES[2]].is_up = False
    assert filled.files.open("/b.log").read() == b"abcd"


def test_a_copy_that_takes_too_long_is_no_member(filled: FileWorld) -> None:
    *_, last = filled.blocks()
    filled.opened[NAMES[0]].lose(last)

    with at("copy.entry.before", lambda: filled.clock.sleep(load_settings().lease_hard_s + 1)):
        repair(filled)
    assert SPARE not in filled.members(last)
    while repair(filled).copied:
        pass
    assert repair(filled).deleted == 0
    assert (len(filled.members(last)), filled.problems()) == (3, set())


def entry(filled: FileWorld, block: BlockId, *, most: int) -> AddMember:
    with filled.journal.reading() as reading:
        row, now_s = reading.get(Block, block), reading.now_s()
    assert row is not None
    return AddMember(
        block=block, volume=SPARE, generation=row.stamp, instead_of=None, most=most, until_s=now_s + 60
    )


def test_a_member_is_added_once_not_beyond_the_wanted_number_and_not_in_safe_mode(filled: FileWorld) -> None:
    first, second, *_ = filled.blocks()
    with pytest.raises(ConflictError, match="has 3 members already"):
        filled.journal.apply(entry(filled, first, most=3))
    filled.journal.apply(entry(filled, first, most=4))
    with pytest.raises(ConflictError, match="is one already"):
        filled.journal.apply(entry(filled, first, most=9))
    filled.opened[NAMES[0]].lose(second)
    add_operators_reason(filled.journal, "a test")
    with pytest.raises(SafeModeError):
        repair(filled)
    assert filled.faults()[second, NAMES[0]] is Fault.LOST
    with pytest.raises(SafeModeError):
        filled.journal.apply(entry(filled, second, most=9))
    assert second not in filled.opened[SPARE].blocks()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_repair_that_dies_at_any_step_leaves_the_block_whole(filled: FileWorld, in_place: bool) -> None:
    first, *_ = filled.blocks()
    filled.opened[SPARE].is_up = not in_place
    for die_at in itertools.count():
        filled.opened[filled.members(first)[1]].cut(first, 1)
        died = crash_at(die_at, lambda: repair(filled), "copy.", "repair.", "left-over.")
        assert filled.files.open("/a.log").read() == TEXT
        repair(filled)
        repair(filled)
        assert len(filled.members(first)) == 3
        assert filled.problems() == ({Problem.UNREACHABLE} if in_place else set())
        if died is None:
            assert die_at > 5
            return


def test_replicas_with_different_damages_make_a_whole_copy(world: FileWorld) -> None:
    world.register()
    away = NAMES[2]
    with world.without(away), world.process(block_bytes=4000).create("/a.log") as writer:
        for data in (FIRST, SECOND):
            writer.write(data)
            writer.flush()
    files = world.process(files_replicas=2)
    (record,) = world.records("/a.log")
    one, other = (world.opened[name] for name in NAMES[:2])
    for volume in (one, other):
        volume.flip(record.block, SECOND)
    list(files.upkeep.check().findings())
    with world.without(away), pytest.raises(SafeModeError):
        files.upkeep.repair()
    with world.without(away):
        assert any("serves byte" in one for one in files.upkeep.repair(accept_loss=True).problems)
    one.flip(record.block, bytes([SECOND[0] ^ 1]) + SECOND[1:])  # back to what it was
    one.flip(record.block, FIRST)
    with pytest.raises(MalformedRecordError):
        files.open("/a.log").read()
    assert files.upkeep.repair(accept_loss=True).copied == 1
    assert files.open("/a.log").read() == FIRST + SECOND


@pytest.fixture
def returned(filled: FileWorld, tmp_path: Path) -> FileWorld:
    """Let a volume miss an append to one file and the removal of the other, and come back."""
    volume = filled.opened[NAMES[0]]
    volume.is_up = False
    with filled.process(*NAMES[1:]).append("/b.log") as writer:
        writer.write(b"def")
    volume.is_up = True
    shutil.copytree(volume.folder / "blocks", old := tmp_path / "old")
    filled.files.delete("/a.log")
    filled.files.remove_deleted()
    shutil.copytree(old, volume.folder / "blocks", dirs_exist_ok=True)
    volume.restart()
    return filled


def test_old_replicas_of_a_volume_that_was_away_are_deleted_in_two_passes(returned: FileWorld) -> None:
    volume = returned.opened[NAMES[0]]
    planned = returned.files.upkeep.repair(dry_run=True)
    assert (planned.left_over, planned.deleted, len(volume.blocks())) == (4, 0, 4)
    began_s = returned.clock.monotonic_s()
    done = repair(returned)
    assert (done.left_over, done.deleted, len(volume.blocks())) == (4, 4, done.copied)
    assert returned.clock.monotonic_s() - began_s == load_settings().lease_hard_s
    assert returned.files.open("/b.log").read() == b"abcdef"


@pytest.mark.parametrize("is_member", [False, True])
def test_a_copy_that_another_repair_makes_is_not_deleted_for_the_replica_that_was_there(
    filled: FileWorld, monkeypatch: pytest.MonkeyPatch, is_member: bool
) -> None:
    """Between the passes, before its entry; or between the second pass and the deletion, which may wait."""
    first, *_ = filled.blocks()
    volume, sleep = filled.opened[SPARE], filled.clock.sleep
    stamp = mark(filled, first, SPARE).generation
    volume.store(first, stamp, [TEXT[:8]])

    def copy(point: str) -> None:
        if point == "left-over.delete.before":
            FAILPOINTS.observer = None
            volume.delete(first, stamp)
            filled.opened[NAMES[0]].cut(first, 1)
            assert repair(filled).copied == 1

    def store(seconds: float) -> None:
        volume.delete(first, stamp)
        volume.store(first, stamp, [TEXT[:8]])
        sleep(seconds)

    if is_member:
        FAILPOINTS.observer = copy
    else:
        monkeypatch.setattr(filled.clock, "sleep", store)
    assert repair(filled).deleted == 0
    assert (SPARE in filled.members(first)) == is_member
    assert volume.read(first, stamp, 0, 9) == TEXT[:8]


def test_a_replica_is_kept_while_a_member_of_its_block_has_no_good_one(returned: FileWorld) -> None:
    (last,) = returned.blocks()
    for name in NAMES[1:]:
        returned.opened[name].is_up = False
    assert repair(returned).deleted == 3
    assert returned.opened[NAMES[0]].blocks() == [last]


def test_a_replica_without_a_stamp_or_of_another_history_is_left_to_the_operator(returned: FileWorld) -> None:
    volume = returned.opened[NAMES[0]]
    volume.create(BlockId(2), Stamp())
    volume.create(BlockId(3), Stamp(9, 9))
    done = repair(returned)
    assert (done.left_over, done.deleted, len(done.problems)) == (5, 4, 1)
    assert set(volume.blocks()) - set(returned.blocks()) == {2, 3}


def test_a_replica_that_changes_between_the_passes_is_kept(
    returned: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (last,) = returned.blocks()
    volume, sleep = returned.opened[NAMES[0]], returned.clock.sleep

    def change(seconds: float) -> None:
        volume.fence(last, returned.journal.status().stamp, Stamp())
        sleep(seconds)

    monkeypatch.setattr(returned.clock, "sleep", change)
    assert repair(returned).deleted == 3
    assert volume.blocks() == [last]
