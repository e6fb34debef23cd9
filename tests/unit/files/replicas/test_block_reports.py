"""Block reports journal what differs, whatever the order of their batches, and nothing that is confirmed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import ConflictError, StoreUnavailableError
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.member_marks import MarkReplica
from lockgate.storage_core.files.namespace.rows import Block, Member, ReportedVolume
from lockgate.storage_core.files.replicas import block_reports
from lockgate.storage_core.files.replicas.block_reports import BlockReports, VolumeReport
from lockgate.storage_core.files.replicas.replica_check import Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import TEXT, FileWorld
from tests.support.files.memory_volume import MemoryVolume
from tests.support.files.memory_world import NAMES, MemoryWorld
from tests.support.journal.checkpoints import JournalWorld


@pytest.fixture
def world(journals: JournalWorld) -> Iterator[MemoryWorld]:
    with MemoryWorld(journals) as world:
        yield world


def pages(volume: MemoryVolume, size: int) -> list[tuple[BlockId | None, tuple[Replica, ...], bool]]:
    """Return the batches of a report of a volume."""
    found, after = [], None
    while True:
        page = volume.replicas(after, size)
        found.append((after, page, len(page) < size))
        if len(page) < size:
            return found
        after = page[-1].block


@pytest.mark.parametrize("page", [1, 2, 500])
def test_a_report_of_whole_replicas_writes_no_entry(
    world: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_reports, "PAGE", page)
    before = world.entries()
    for _ in range(3):
        found = world.files.upkeep.report()
    assert [(one.volume, one.replicas, one.length_bytes, one.differences) for one in found] == [
        (name, 4, len(TEXT) + 3, 0) for name in NAMES
    ]
    assert world.entries() == before
    with world.journal.reading() as reading:
        assert [row.reported_s for row in reading.where(ReportedVolume, {})] == [
            one.reported_s for one in found
        ]


@pytest.mark.parametrize("page", [1, 2, 500])
def test_only_what_differs_is_journaled_and_no_longer_read(
    world: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_reports, "PAGE", page)
    first, second, third, _ = world.blocks()
    del world.volumes[NAMES[0]].stored[first]
    world.volumes[NAMES[0]].stored[second].stamp = Stamp(1, 1)
    del world.volumes[NAMES[1]].stored[third].data[1:]
    before = world.entries()

    found = world.files.upkeep.report()

    assert [one.differences for one in found] == [2, 1, 0]
    assert world.faults() == {
        (first, NAMES[0]): Fault.LOST,
        (second, NAMES[0]): Fault.STALE,
        (third, NAMES[1]): Fault.CORRUPT,
    }
    assert world.entries() == before + 3
    assert [one.differences for one in world.files.upkeep.report()] == [0, 0, 0]
    assert world.entries() == before + 3
    assert world.files.open("/a.log").read() == TEXT
    with pytest.raises(StoreUnavailableError):
        world.process(NAMES[1]).open("/a.log").read()
    assert {one.problem for one in world.files.check().findings()} == {
        Problem.LOST,
        Problem.STALE,
        Problem.CORRUPT,
    }
    assert world.journals.verify().findings == ()


def test_a_replica_that_is_back_is_used_again_and_a_corrupt_one_is_not(world: MemoryWorld) -> None:
    first, second, *_ = world.blocks()
    volume = world.volumes[NAMES[0]]
    away, damaged = volume.stored.pop(first), volume.stored[second].data.pop()
    world.files.upkeep.report()
    volume.stored[first] = away
    volume.stored[second].data.append(damaged)

    assert [one.differences for one in world.files.upkeep.report()] == [1, 0, 0]
    assert world.faults() == {(second, NAMES[0]): Fault.CORRUPT}


def test_the_last_replica_of_a_block_is_named_and_not_marked(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    for name in NAMES:
        del world.volumes[name].stored[first]

    found = world.files.upkeep.report()

    assert [(one.differences, one.only_ones) for one in found] == [(1, 0), (1, 0), (0, 1)]
    assert set(world.faults()) == {(first, NAMES[0]), (first, NAMES[1])}
    for stamp in (Stamp(1, 10**6), Stamp(1, 1)):
        with pytest.raises(ConflictError, match="has changed since"):
            world.journal.apply(MarkReplica(block=first, volume=NAMES[2], generation=stamp, fault=Fault.LOST))


def test_an_entry_never_takes_the_last_good_replica(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    with world.journal.reading() as reading:
        row = reading.get(Block, first)
    assert row is not None
    marks = [
        MarkReplica(block=first, volume=name, generation=row.stamp, fault=Fault.CORRUPT) for name in NAMES
    ]
    for mark in marks[:2]:
        world.journal.apply(mark)
    with pytest.raises(ConflictError, match="no other member"):
        world.journal.apply(marks[2])
    with pytest.raises(ConflictError, match="marked so already"):
        world.journal.apply(marks[0])
    assert world.files.open("/a.log").read() == TEXT


def test_batches_twice_late_and_in_any_order_give_the_same_faults(world: MemoryWorld) -> None:
    first, second, *_ = world.blocks()
    old = pages(world.volumes[NAMES[0]], 1)
    del world.volumes[NAMES[0]].stored[first]
    world.volumes[NAMES[0]].stored[second].stamp = Stamp(1, 1)
    new = pages(world.volumes[NAMES[0]], 1)
    before = world.entries()
    reports = BlockReports(world.journal, world.volumes)
    for seed in range(10):
        batches = [*old, *new, *new]
        random.Random(seed).shuffle(batches)
        for after, page, is_last in batches:
            reports.batch(VolumeReport(volume=NAMES[0]), after, page, is_last=is_last)
        assert world.faults() == {(first, NAMES[0]): Fault.LOST, (second, NAMES[0]): Fault.STALE}
    assert world.entries() == before + 2


def test_a_batch_that_is_missing_means_nothing(world: MemoryWorld) -> None:
    reports = BlockReports(world.journal, world.volumes)
    batches = pages(world.volumes[NAMES[0]], 1)
    before = world.entries()
    for sent in itertools.chain.from_iterable(itertools.combinations(batches, n) for n in range(4)):
        for after, page, is_last in sent:
            reports.batch(VolumeReport(volume=NAMES[0]), after, page, is_last=is_last)
    assert (world.entries(), world.faults()) == (before, {})


def test_a_volume_that_does_not_answer_loses_nothing_and_shows_its_last_report(world: MemoryWorld) -> None:
    earlier = world.files.upkeep.report()[0]
    world.volumes[NAMES[0]].is_up = False
    found, *others = world.files.upkeep.report()
    assert (found.replicas, found.reported_s) == (4, earlier.reported_s)
    assert "out of reach" in found.why_not
    assert [one.why_not for one in others] == ["", ""]
    assert "not known" in world.process(NAMES[1]).upkeep.report()[0].why_not
    assert world.faults() == {}


def test_a_block_that_is_written_is_left_to_its_reseal(world: MemoryWorld) -> None:
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    *_, last = world.blocks()
    before = world.entries()
    del world.volumes[NAMES[0]].stored[last]
    assert [one.differences for one in world.files.upkeep.report()] == [0, 0, 0]
    assert world.entries() == before
    writer.write(b"e")
    writer.close()
    assert world.files.open("/b.log").read() == b"abcde"


def test_an_append_leaves_a_marked_member_out(world: MemoryWorld) -> None:
    *_, last = world.blocks()
    world.volumes[NAMES[0]].stored[last].data[0] ^= 1
    with world.journal.reading() as reading:
        row = reading.get(Block, last)
    assert row is not None
    world.journal.apply(MarkReplica(block=last, volume=NAMES[0], generation=row.stamp, fault=Fault.CORRUPT))
    with world.files.append("/b.log") as writer:
        writer.write(b"d")
    assert world.files.open("/b.log").read() == b"abcd"
    with world.journal.reading() as reading:
        assert [one.volume for one in reading.where(Member, {"block": last})] == [*NAMES[1:]]


def test_a_deleted_file_is_removed_without_the_volume_of_a_marked_replica(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    away = world.volumes[NAMES[0]].stored.pop(first)
    world.files.upkeep.report()
    world.volumes[NAMES[0]].is_up = False
    world.files.delete("/a.log")
    assert world.files.remove_deleted().kept_blocks == 2  # those that it has good replicas of
    assert first not in world.blocks()
    world.volumes[NAMES[0]].is_up = True
    world.volumes[NAMES[0]].stored[first] = away
    assert [one.problem for one in world.files.check().findings()] == [Problem.LEFT_OVER]


def test_a_report_in_safe_mode_journals_what_differs(world: MemoryWorld) -> None:
    first, *_ = world.blocks()
    del world.volumes[NAMES[0]].stored[first]
    add_operators_reason(world.journal, "a test")
    assert [one.differences for one in world.files.upkeep.report()] == [1, 0, 0]


def test_a_local_volume_reports_its_replicas(journals: JournalWorld, tmp_path: Path) -> None:
    with FileWorld(journals, tmp_path) as world:
        check_reports(world)


def check_reports(world: FileWorld) -> None:
    files = world.process()
    world.write(files, "/a.log")
    world.stop_volumes()
    folder = world.folders[0]
    head, log = sorted([*folder.glob("*.head")])[0], sorted([*folder.glob("*.log")])[1]
    head.unlink()
    log.write_bytes(log.read_bytes()[:-1])
    world.start_volumes()
    volume = VolumeId((folder / "volume.id").read_text())

    assert {one.volume: one.differences for one in files.upkeep.report() if one.differences} == {volume: 2}
    rows = [row for row in world.rows(Member) if row.fault]
    assert [row.fault for row in rows] == [Fault.LOST, Fault.CORRUPT]
    assert world.process().open("/a.log").read() == TEXT
