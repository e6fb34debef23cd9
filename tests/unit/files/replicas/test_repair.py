"""A repair marks what is wrong, copies what has too few replicas, and deletes what no block needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import ConflictError, MalformedRecordError, SafeModeError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.members import AddMember, MarkReplica
from lockgate.storage_core.files.namespace.rows import Block, DamagedReplica
from lockgate.storage_core.files.replicas import comparison, replica_check
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.replicas.repair import Repaired
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import TEXT, FileWorld
from tests.support.files.memory_world import NAMES, SPARE, MemoryWorld
from tests.support.journal.checkpoints import JournalWorld

FIRST, SECOND = b"a" * 1000, b"b" * 1000


@pytest.fixture
def memory(journals: JournalWorld) -> Iterator[MemoryWorld]:
    with MemoryWorld(journals, has_spare=True) as world:
        yield world


def repair(world: MemoryWorld) -> Repaired:
    return world.files.upkeep.repair()


def mark(
    world: MemoryWorld, block: BlockId, volume: VolumeId, fault: Fault | None = Fault.CORRUPT
) -> MarkReplica:
    with world.journal.reading() as reading:
        row = reading.get(Block, block)
    assert row is not None
    return MarkReplica(block=block, volume=volume, generation=row.stamp, fault=fault)


@pytest.mark.parametrize("page", [1, 2, 500])
def test_what_differs_is_taken_out_of_use_and_copied_and_a_dry_run_changes_nothing(
    memory: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (comparison, replica_check):
        monkeypatch.setattr(module, "PAGE", page)
    first, second, third, last = memory.blocks()
    del memory.volumes[NAMES[0]].stored[first]
    memory.volumes[NAMES[0]].stored[second].stamp = Stamp(1, 1)
    memory.volumes[NAMES[1]].stored[third].data.pop()
    memory.volumes[NAMES[2]].stored[last].rotten = 0
    assert len(memory.findings()) == 4
    before = memory.entries()

    planned = memory.files.upkeep.repair(dry_run=True)
    assert (planned.marked, planned.deleted, planned.problems) == (4, 0, [])
    assert memory.entries() == before
    assert memory.faults() == {}
    lines: list[str] = []
    done = memory.files.upkeep.repair(note=lines.append)

    assert (done.replicas, done.read_bytes, done.marked, done.copied, done.problems) == (11, 0, 4, 4, [])
    assert memory.entries() == before + 8
    assert [line.partition(":")[0] for line in lines[:4]] == ["lost", "stale", "corrupt", "corrupt"]
    assert (done.left_over, done.deleted) == (0, 0)  # they are, from the copies on
    assert memory.members(first) == [NAMES[1], NAMES[2], SPARE]
    assert memory.volumes[SPARE].stored[first].state is ReplicaState.SEALED
    again = repair(memory)
    assert (again.marked, again.copied, again.left_over, again.deleted) == (0, 0, 3, 3)
    assert memory.problems() == set()
    assert memory.files.open("/a.log").read() == TEXT
    with memory.journal.reading() as reading:
        assert reading.where(DamagedReplica, {}) == []
    assert memory.journals.verify().findings == ()


def test_the_last_good_replica_of_a_block_is_named_and_never_taken_out_of_use(memory: MemoryWorld) -> None:
    first, *_ = memory.blocks()
    for name in NAMES:
        memory.volumes[name].stored[first].rotten = 0
    assert len(memory.findings()) == 3
    done = memory.files.upkeep.repair(accept_loss=True)
    assert done.marked == 2
    assert "/a.log" in done.problems[0]
    assert set(memory.faults()) == {(first, NAMES[0]), (first, NAMES[1])}
    with pytest.raises(ConflictError, match="no other member"):
        memory.journal.apply(mark(memory, first, NAMES[2]))
    with pytest.raises(ConflictError, match="marked so already"):
        memory.journal.apply(mark(memory, first, NAMES[0]))
    for name in NAMES:
        memory.volumes[name].stored[first].rotten = None
    assert memory.files.upkeep.repair().released == 2  # corrupt ones are read again
    assert (memory.faults(), memory.problems()) == ({}, set())


def test_a_block_that_is_written_or_opened_meanwhile_is_left_to_its_writer(memory: MemoryWorld) -> None:
    *_, last = memory.blocks()
    memory.volumes[NAMES[0]].stored[last].rotten = 0
    assert memory.findings() == [(last, Problem.CORRUPT, "/b.log")]
    others = memory.process(*NAMES[1:])

    def append(point: str) -> None:
        if point == "repair.mark.before":
            FAILPOINTS.observer = None
            with others.append("/b.log") as writer:
                writer.write(b"d")

    FAILPOINTS.observer = append
    assert repair(memory).marked == 0
    assert memory.faults() == {}
    writer = others.append("/b.log")
    writer.write(b"e")
    writer.flush()
    before = memory.members(last)
    del memory.volumes[before[0]].stored[last]  # type: ignore[arg-type]
    done = repair(memory)
    assert (done.marked, len(done.problems), memory.members(last)) == (0, 1, before)
    writer.close()
    assert memory.files.open("/b.log").read() == b"abcde"


def test_a_marked_member_is_left_out_of_appends_and_removals(memory: MemoryWorld) -> None:
    first, *_, last = memory.blocks()
    for block in (first, last):
        memory.journal.apply(mark(memory, block, NAMES[0]))
    memory.volumes[NAMES[0]].is_up = False
    with memory.files.append("/b.log") as writer:
        writer.write(b"d")
    assert memory.members(last) == [*NAMES[1:]]
    memory.files.delete("/a.log")
    assert memory.files.remove_deleted().kept_blocks == 2  # those that it has good replicas of
    assert first not in memory.blocks()


def test_a_replica_is_made_again_on_its_volume_if_no_other_can_take_it(memory: MemoryWorld) -> None:
    first, second, *_ = memory.blocks()
    memory.volumes[SPARE].is_up = False
    del memory.volumes[NAMES[0]].stored[first]
    memory.volumes[NAMES[0]].stored[second].data.pop()

    done = repair(memory)

    assert done.copied == 2
    assert memory.members(first) == memory.members(second) == [*NAMES]
    assert memory.process(NAMES[0]).open("/a.log").read(16) == TEXT[:16]


def test_a_block_that_lost_a_member_in_a_pipeline_gets_another_one(memory: MemoryWorld) -> None:
    *_, last = memory.blocks()
    memory.volumes[NAMES[0]].is_up = False
    with memory.files.append("/b.log") as writer:
        writer.write(b"d")
        writer.flush()
        assert repair(memory).copied == 0  # it is being written
    assert repair(memory).copied == 1
    assert memory.members(last) == [*NAMES[1:], SPARE]
    memory.volumes[NAMES[1]].is_up = memory.volumes[NAMES[2]].is_up = False
    assert memory.files.open("/b.log").read() == b"abcd"


def test_a_copy_that_takes_too_long_is_no_member(memory: MemoryWorld) -> None:
    *_, last = memory.blocks()
    del memory.volumes[NAMES[0]].stored[last]

    def wait(point: str) -> None:
        if point == "copy.entry.before":
            FAILPOINTS.observer = None
            memory.clock.sleep(load_settings().lease_hard_s + 1)

    FAILPOINTS.observer = wait
    repair(memory)
    assert SPARE not in memory.members(last)
    while repair(memory).copied:
        pass
    assert repair(memory).deleted == 0
    assert (len(memory.members(last)), memory.problems()) == (3, set())


def entry(memory: MemoryWorld, block: BlockId, *, most: int) -> AddMember:
    with memory.journal.reading() as reading:
        row, now_s = reading.get(Block, block), reading.now_s()
    assert row is not None
    return AddMember(
        block=block, volume=SPARE, generation=row.stamp, instead_of=None, most=most, until_s=now_s + 60
    )


def test_a_member_is_added_once_not_beyond_the_wanted_number_and_not_in_safe_mode(
    memory: MemoryWorld,
) -> None:
    first, second, *_ = memory.blocks()
    with pytest.raises(ConflictError, match="has 3 members already"):
        memory.journal.apply(entry(memory, first, most=3))
    memory.journal.apply(entry(memory, first, most=4))
    with pytest.raises(ConflictError, match="is one already"):
        memory.journal.apply(entry(memory, first, most=9))
    del memory.volumes[NAMES[0]].stored[second]
    add_operators_reason(memory.journal, "a test")
    with pytest.raises(SafeModeError):
        repair(memory)
    assert memory.faults()[second, NAMES[0]] is Fault.LOST
    with pytest.raises(SafeModeError):
        memory.journal.apply(entry(memory, second, most=9))
    assert second not in memory.volumes[SPARE].stored


@pytest.mark.parametrize("in_place", [False, True])
def test_a_repair_that_dies_at_any_step_leaves_the_block_whole(memory: MemoryWorld, in_place: bool) -> None:
    first, *_ = memory.blocks()
    memory.volumes[SPARE].is_up = not in_place
    for die_at in itertools.count():
        victim = memory.volumes[VolumeId(memory.members(first)[1])]
        victim.stored[first].data.pop()
        died = crash_at(die_at, lambda: repair(memory), "copy.", "repair.", "left-over.")
        assert memory.files.open("/a.log").read() == TEXT
        repair(memory)
        repair(memory)
        assert len(memory.members(first)) == 3
        assert memory.problems() == ({Problem.UNREACHABLE} if in_place else set())
        if died is None:
            assert die_at > 5
            return


def test_replicas_with_different_damages_make_a_whole_copy(world: FileWorld) -> None:
    world.register()
    away = world.names[2]
    with world.without(away), world.process(block_bytes=4000).create("/a.log") as writer:
        for data in (FIRST, SECOND):
            writer.write(data)
            writer.flush()
    files = Files(world.journal, world.volumes, load_settings(files_replicas=2))
    (record,) = world.records("/a.log")
    for at in (0, 1):
        world.flip(at, record.block, SECOND)
    list(files.upkeep.check().findings())
    with world.without(away), pytest.raises(SafeModeError):
        files.upkeep.repair()
    with world.without(away):
        assert any("serves byte" in one for one in files.upkeep.repair(accept_loss=True).problems)
    world.flip(0, record.block, bytes([SECOND[0] ^ 1]) + SECOND[1:])  # back to what it was
    world.flip(0, record.block, FIRST)
    with pytest.raises(MalformedRecordError):
        files.open("/a.log").read()
    assert files.upkeep.repair(accept_loss=True).copied == 1
    assert files.open("/a.log").read() == FIRST + SECOND


@pytest.fixture
def returned(memory: MemoryWorld) -> MemoryWorld:
    """Let a volume miss an append to one file and the removal of the other, and come back."""
    volume = memory.volumes[NAMES[0]]
    volume.is_up = False
    with memory.process(*NAMES[1:]).append("/b.log") as writer:
        writer.write(b"def")
    volume.is_up = True
    old = dict(volume.stored)
    memory.files.delete("/a.log")
    memory.files.remove_deleted()
    volume.stored.update(old)
    return memory


def test_old_replicas_of_a_volume_that_was_away_are_deleted_in_two_passes(returned: MemoryWorld) -> None:
    volume = returned.volumes[NAMES[0]]
    planned = returned.files.upkeep.repair(dry_run=True)
    assert (planned.left_over, planned.deleted, len(volume.stored)) == (4, 0, 4)
    began_s = returned.clock.monotonic_s()
    done = repair(returned)
    assert (done.left_over, done.deleted, len(volume.stored)) == (4, 4, done.copied)
    assert returned.clock.monotonic_s() - began_s == load_settings().lease_hard_s
    assert returned.files.open("/b.log").read() == b"abcdef"


@pytest.mark.parametrize("is_member", [False, True])
def test_a_copy_that_another_repair_makes_is_not_deleted_for_the_replica_that_was_there(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch, is_member: bool
) -> None:
    """Between the passes, before its entry; or between the second pass and the deletion, which may wait."""
    first, *_ = memory.blocks()
    volume, sleep = memory.volumes[SPARE], memory.clock.sleep
    stamp = mark(memory, first, SPARE).generation
    volume.store(first, stamp, [TEXT[:8]])

    def copy(point: str) -> None:
        if point == "left-over.delete.before":
            FAILPOINTS.observer = None
            volume.delete(first, stamp)
            memory.volumes[NAMES[0]].stored[first].data.pop()
            assert repair(memory).copied == 1

    def store(seconds: float) -> None:
        volume.delete(first, stamp)
        volume.store(first, stamp, [TEXT[:8]])
        sleep(seconds)

    if is_member:
        FAILPOINTS.observer = copy
    else:
        monkeypatch.setattr(memory.clock, "sleep", store)
    assert repair(memory).deleted == 0
    assert (SPARE in memory.members(first)) == is_member
    assert volume.read(first, stamp, 0, 9) == TEXT[:8]


def test_a_replica_is_kept_while_a_member_of_its_block_has_no_good_one(returned: MemoryWorld) -> None:
    (last,) = returned.blocks()
    for name in NAMES[1:]:
        returned.volumes[name].is_up = False
    assert repair(returned).deleted == 3
    assert [*returned.volumes[NAMES[0]].stored] == [last]


def test_a_replica_without_a_stamp_or_of_another_history_is_left_to_the_operator(
    returned: MemoryWorld,
) -> None:
    volume = returned.volumes[NAMES[0]]
    volume.create(BlockId(2), Stamp())
    volume.create(BlockId(3), Stamp(9, 9))
    done = repair(returned)
    assert (done.left_over, done.deleted, len(done.problems)) == (5, 4, 1)
    assert set(volume.stored) - set(returned.blocks()) == {2, 3}


def test_a_replica_that_changes_between_the_passes_is_kept(
    returned: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (last,) = returned.blocks()
    volume, sleep = returned.volumes[NAMES[0]], returned.clock.sleep

    def change(seconds: float) -> None:
        volume.fence(last, returned.journal.status().stamp, Stamp())
        sleep(seconds)

    monkeypatch.setattr(returned.clock, "sleep", change)
    assert repair(returned).deleted == 3
    assert [*volume.stored] == [last]
