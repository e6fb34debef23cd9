"""A check of replicas finds what differs from the journal, and nothing else; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.rows import DamagedReplica, Member, ReportedVolume
from lockgate.storage_core.files.replicas import comparison, replica_check
from lockgate.storage_core.files.replicas.comparison import Problem
from lockgate.storage_core.files.replicas.replica_check import CONFIRMED_S, HeadSlices, store_report
from lockgate.storage_core.files.volumes.protocol import Volume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT
from tests.support.files.memory_world import NAMES, MemoryWorld
from tests.support.journal.checkpoints import JournalWorld
from tests.support.journal.observers import SteppingClock

LENGTH = len(TEXT) + 3


@pytest.fixture
def memory(journals: JournalWorld) -> Iterator[MemoryWorld]:
    with MemoryWorld(journals) as world:
        yield world


def reports(world: MemoryWorld) -> list[ReportedVolume]:
    with world.journal.reading() as reading:
        return list(reading.where(ReportedVolume, {}))


@pytest.mark.parametrize("page", [1, 2, 500])
def test_whole_replicas_are_counted_and_no_entry_is_written(
    memory: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (comparison, replica_check):
        monkeypatch.setattr(module, "PAGE", page)
    before, seen = memory.entries(), []
    check = memory.files.upkeep.check(progress=lambda *one: seen.append(one))
    assert list(check.findings()) == []
    assert (check.replicas, check.read_bytes) == (12, 3 * LENGTH)
    assert (f"check {NAMES[0]}", 4, 0) in seen
    assert memory.entries() == before
    assert [(row.only_ones, row.read_to) for row in reports(memory)] == [(0, 0)] * 3
    assert all(row.reported_s for row in reports(memory))


@pytest.mark.parametrize("page", [1, 500])
def test_each_replica_that_differs_is_found_with_its_file(
    memory: MemoryWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (comparison, replica_check):
        monkeypatch.setattr(module, "PAGE", page)
    first, second, third, other = memory.blocks()
    volume = memory.volumes[NAMES[0]]
    del volume.stored[first]
    volume.stored[second].stamp = Stamp(1, 1)
    volume.stored[third].data.pop()
    volume.stored[other].rotten = 2
    volume.create(BlockId(3), Stamp(1, 1))
    volume.create(BlockId(other + 1), Stamp(1, 10**6))
    volume.create(BlockId(other + 2), Stamp(9, 1))

    of_a = [
        (first, Problem.LOST, "/a.log"),
        (second, Problem.STALE, "/a.log"),
        (third, Problem.CORRUPT, "/a.log"),
    ]
    found = [
        (3, Problem.LEFT_OVER, ""),
        *of_a,
        (other + 1, Problem.UNEXPLAINED, ""),
        (other + 2, Problem.UNEXPLAINED, ""),
    ]
    assert sorted(memory.findings(verify=False)) == sorted(found)
    for slices in (2, 4, 100):
        sliced = memory.files.upkeep.check(verify=False, virtual_volumes=slices).findings()
        assert sorted((one.block, one.problem, one.path) for one in sliced) == sorted(found)
    assert sorted(memory.findings()) == sorted([*found, (other, Problem.CORRUPT, "/b.log")])
    assert memory.findings("/a.log") == of_a
    assert len(memory.findings("/")) == 4
    with pytest.raises(ObjectNotFoundError):
        memory.findings("/none")
    with memory.journal.reading() as reading:
        assert [row.block for row in reading.where(DamagedReplica, {})] == [other]


def test_a_check_that_was_stopped_goes_on_where_it_was(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (comparison, replica_check):
        monkeypatch.setattr(module, "PAGE", 1)
    first, second, *_ = memory.blocks()
    for block in (first, second):
        memory.volumes[NAMES[0]].stored[block].rotten = 0
    check = memory.files.upkeep.check().findings()
    assert next(check).block == first
    assert next(check).block == second
    check.close()
    memory.volumes[NAMES[0]].stored[first].rotten = None
    again = memory.files.upkeep.check()
    list(again.findings())
    assert again.read_bytes == 3 * LENGTH - 16
    assert memory.findings() == [(second, Problem.CORRUPT, "/a.log")]  # the next one reads all


@pytest.mark.parametrize(
    ("verify", "later_s", "left_out"), [(False, 0, 1), (True, 0, 0), (False, CONFIRMED_S, 0)]
)
def test_a_stopped_check_leaves_out_virtual_volumes_that_it_has_confirmed(
    memory: MemoryWorld, verify: bool, later_s: float, left_out: int
) -> None:
    _, second, *_ = memory.blocks()
    del memory.volumes[NAMES[0]].stored[second]
    stopped = memory.files.upkeep.check(verify=False, virtual_volumes=4).findings()
    assert next(stopped).block == second  # the first virtual volume has one block, as each has
    stopped.close()
    memory.clock.sleep(later_s)
    check = memory.files.upkeep.check(verify=verify)
    assert [(one.block, one.problem) for one in check.findings()] == [(second, Problem.LOST)]
    assert check.replicas == 11 - left_out
    assert {row.volume for row in reports(memory)} == set(NAMES)
    assert all(row.reported_s for row in reports(memory))


def test_virtual_volumes_with_a_gap_are_replaced(memory: MemoryWorld) -> None:
    """One that a check has stored again after another one had ended its report."""
    _, second, *_ = memory.blocks()
    check = memory.files.upkeep.check(verify=False, virtual_volumes=4).findings()
    del memory.volumes[NAMES[0]].stored[second]
    next(check)
    ended = memory.files.upkeep.check(verify=False)
    assert [one.block for one in ended.findings()] == [second]
    rest = list(check)
    assert rest == []
    with memory.journal.reading() as reading:
        ends = reading.quantiles(Member, {"volume": NAMES[0]}, "block", 4)
    store_report(memory.journal, f"{NAMES[0]}#{ends[0]}-{ends[1]}", only_ones=0)
    assert [one[0] for one in memory.findings(verify=False)] == [second]
    assert {row.volume for row in reports(memory)} == set(NAMES)


def test_slices_of_entries_keep_within_a_time_and_leave_the_head_alone_for_as_long() -> None:
    clock, sizes = SteppingClock(), []
    for marks in HeadSlices(clock, 50).of(range(2_000)):
        sizes.append(len(marks))
        clock.now += len(marks) * 0.001
    assert (sizes[:2], sum(sizes), set(sizes[1:-1])) == ([64, 32], 2_000, {32})
    assert clock.slept_s == pytest.approx(2.0, abs=0.001)


def test_a_block_that_is_written_is_compared_by_its_stamp_and_length(memory: MemoryWorld) -> None:
    writer = memory.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    assert memory.problems() == set()
    *_, last = memory.blocks()
    writer.write(b"efgh")
    writer.flush()
    memory.clock.sleep(load_settings().lease_renew_s)
    assert memory.problems() == set()
    for name in NAMES:
        del memory.volumes[name].stored[last].data[5:]
    assert memory.findings("/b.log") == [(last, Problem.CORRUPT, "/b.log")] * 3
    memory.volumes[NAMES[0]].stored[last].damage = "its log is cut"
    del memory.volumes[NAMES[1]].stored[last]
    found = [problem for _, problem, _ in memory.findings("/b.log")]
    assert found == [Problem.CORRUPT, Problem.LOST, Problem.CORRUPT]


def test_volumes_that_do_not_answer_are_named_and_their_replicas_are_not_called_lost(
    memory: MemoryWorld,
) -> None:
    gone, down, here = NAMES
    memory.files.close()
    memory.files = memory.process(down, here)
    memory.volumes[down].is_up = False
    before = reports(memory)
    for path in ("", "/"):
        found = [(one.volume, one.problem, one.block) for one in memory.files.upkeep.check(path).findings()]
        assert found == [(volume, Problem.UNREACHABLE, None) for volume in (gone, down)]
    assert [row.volume for row in reports(memory) if row not in before] == [here]
    statuses = {one.volume: one for one in memory.files.upkeep.statuses()}
    assert [bool(statuses[name].why_not) for name in NAMES] == [True, True, False]
    assert statuses[here].used_bytes


def test_what_changes_during_a_check_is_not_reported(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for volume in memory.volumes.values():
        listed = volume.replicas

        def change(after: BlockId | None, limit: int, listed=listed) -> tuple[Replica, ...]:  # type: ignore[no-untyped-def]
            page: tuple[Replica, ...] = listed(after, limit)
            if any(one.name == "b.log" for one in memory.files.list("/")):
                memory.files.delete("/b.log")
                memory.files.remove_deleted()
                with memory.files.create("/c.log") as writer:
                    writer.write(TEXT)
            return page

        monkeypatch.setattr(volume, "replicas", change)
    assert memory.problems() == set()
    assert memory.files.open("/c.log").read() == TEXT


def test_a_file_that_is_closed_after_its_replica_was_looked_at_is_not_reported(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, opened = memory.volumes[NAMES[0]], list[Writer]()
    listed, look = volume.replicas, comparison.stat_replica

    def open_after(after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        page = listed(after, limit)
        opened.append(memory.files.append("/b.log"))
        return page

    def close_after(there: Volume, block: BlockId) -> Replica | None:
        found = look(there, block)
        if there is volume and opened:
            writer = opened.pop()
            writer.write(b"more")
            writer.close()
        return found

    monkeypatch.setattr(volume, "replicas", open_after)
    monkeypatch.setattr(replica_check, "stat_replica", close_after)
    assert memory.problems() == set()
    assert opened == []
    assert memory.files.open("/b.log").read() == b"abcmore"


def test_replicas_that_a_removal_has_deleted_are_no_loss_while_it_runs_and_after_it_died(
    memory: MemoryWorld,
) -> None:
    memory.files.truncate("/a.log", 3)
    memory.files.delete("/b.log")
    seen: list[object] = []

    def look(point: str, *, dies: bool) -> None:
        if point == "removal.replicas.after":
            FAILPOINTS.observer = None
            seen.extend(memory.findings())
            done = memory.files.upkeep.repair()
            seen.extend([done.marked, done.problems])
            FAILPOINTS.observer = partial(look, dies=True)
            if dies:
                raise Crash(point)

    FAILPOINTS.observer = partial(look, dies=False)
    with pytest.raises(Crash):
        memory.files.remove_deleted()
    FAILPOINTS.observer = None
    assert seen == [0, []] * 2
    assert memory.files.remove_deleted().kept_blocks == 0
    assert (len(memory.blocks()), memory.problems()) == (1, set())


def test_reads_are_paced_and_a_bad_limit_is_refused(memory: MemoryWorld) -> None:
    began_s = memory.clock.monotonic_s()
    list(memory.files.upkeep.check(bytes_per_s=10).findings())
    assert memory.clock.monotonic_s() - began_s == pytest.approx(3 * LENGTH / 10)
    with pytest.raises(InvalidInputError, match="more than 0"):
        memory.files.upkeep.check(bytes_per_s=0)
