"""A check of replicas finds what differs from the journal, and nothing else; it changes nothing."""

from __future__ import annotations

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
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash
from tests.support.files.file_world import NAMES, TEXT, FileWorld
from tests.support.journal.observers import SteppingClock

LENGTH = len(TEXT) + 3


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    return world.fill()


@pytest.mark.parametrize("page", [1, 2, 500], indirect=True)
@pytest.mark.usefixtures("page")
def test_whole_replicas_are_counted_and_no_entry_is_written(world: FileWorld) -> None:
    before, seen = world.entries(), []
    check = world.files.upkeep.check(progress=lambda *one: seen.append(one))
    assert list(check.findings()) == []
    assert (check.replicas, check.read_bytes) == (12, 3 * LENGTH)
    assert (f"check {NAMES[0]}", 4, 0) in seen
    assert world.entries() == before
    assert [(row.only_ones, row.read_to) for row in world.rows(ReportedVolume)] == [(0, 0)] * 3
    assert all(row.reported_s for row in world.rows(ReportedVolume))


@pytest.mark.parametrize("page", [1, 500], indirect=True)
@pytest.mark.usefixtures("page")
def test_each_replica_that_differs_is_found_with_its_file(world: FileWorld) -> None:
    first, second, third, other = world.blocks()
    volume = world.opened[NAMES[0]]
    volume.lose(first)
    volume.put(second, Stamp(1, 1), b"old")
    volume.cut(third, 1)
    volume.flip(other, b"c")
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
    assert sorted(world.findings(verify=False)) == sorted(found)
    for slices in (2, 4, 100):
        sliced = world.files.upkeep.check(verify=False, virtual_volumes=slices).findings()
        assert sorted((one.block, one.problem, one.path) for one in sliced) == sorted(found)
    assert sorted(world.findings()) == sorted([*found, (other, Problem.CORRUPT, "/b.log")])
    assert world.findings("/a.log") == of_a
    assert len(world.findings("/")) == 4
    with pytest.raises(ObjectNotFoundError):
        world.findings("/none")
    assert [row.block for row in world.rows(DamagedReplica)] == [other]


@pytest.mark.parametrize("page", [1], indirect=True)
@pytest.mark.usefixtures("page")
def test_a_check_that_was_stopped_goes_on_where_it_was(world: FileWorld) -> None:
    first, second, *_ = world.blocks()
    volume = world.opened[NAMES[0]]
    for block, data in ((first, TEXT[:8]), (second, TEXT[8:16])):
        volume.flip(block, data)
    check = world.files.upkeep.check().findings()
    assert next(check).block == first
    assert next(check).block == second
    check.close()
    volume.put(first, world.records("/a.log")[0].stamp, TEXT[:8])
    again = world.files.upkeep.check()
    list(again.findings())
    assert again.read_bytes == 3 * LENGTH - 16
    assert world.findings() == [(second, Problem.CORRUPT, "/a.log")]  # the next one reads all


@pytest.mark.parametrize(
    ("verify", "later_s", "left_out"), [(False, 0, 1), (True, 0, 0), (False, CONFIRMED_S, 0)]
)
def test_a_stopped_check_leaves_out_virtual_volumes_that_it_has_confirmed(
    world: FileWorld, verify: bool, later_s: float, left_out: int
) -> None:
    _, second, *_ = world.blocks()
    world.opened[NAMES[0]].lose(second)
    stopped = world.files.upkeep.check(verify=False, virtual_volumes=4).findings()
    assert next(stopped).block == second  # the first virtual volume has one block, as each has
    stopped.close()
    world.clock.sleep(later_s)
    check = world.files.upkeep.check(verify=verify)
    assert [(one.block, one.problem) for one in check.findings()] == [(second, Problem.LOST)]
    assert check.replicas == 11 - left_out
    assert {row.volume for row in world.rows(ReportedVolume)} == set(NAMES)
    assert all(row.reported_s for row in world.rows(ReportedVolume))


def test_virtual_volumes_with_a_gap_are_replaced(world: FileWorld) -> None:
    """One that a check has stored again after another one had ended its report."""
    _, second, *_ = world.blocks()
    check = world.files.upkeep.check(verify=False, virtual_volumes=4).findings()
    world.opened[NAMES[0]].lose(second)
    next(check)
    ended = world.files.upkeep.check(verify=False)
    assert [one.block for one in ended.findings()] == [second]
    rest = list(check)
    assert rest == []
    with world.journal.reading() as reading:
        ends = reading.quantiles(Member, {"volume": NAMES[0]}, "block", 4)
    store_report(world.journal, f"{NAMES[0]}#{ends[0]}-{ends[1]}", only_ones=0)
    assert [one[0] for one in world.findings(verify=False)] == [second]
    assert {row.volume for row in world.rows(ReportedVolume)} == set(NAMES)


def test_slices_of_entries_keep_within_a_time_and_leave_the_head_alone_for_as_long() -> None:
    clock, sizes = SteppingClock(), []
    for marks in HeadSlices(clock, 50).of(range(2_000)):
        sizes.append(len(marks))
        clock.now += len(marks) * 0.001
    assert (sizes[:2], sum(sizes), set(sizes[1:-1])) == ([64, 32], 2_000, {32})
    assert clock.slept_s == pytest.approx(2.0, abs=0.001)


def test_a_block_that_is_written_is_compared_by_its_stamp_and_length(world: FileWorld) -> None:
    writer = world.process(*NAMES).append("/b.log")
    writer.write(b"d")
    writer.flush()
    assert world.problems() == set()
    *_, last = world.blocks()
    writer.write(b"efgh")
    writer.flush()
    world.clock.sleep(load_settings().lease_renew_s)
    assert world.problems() == set()
    for name in NAMES:
        world.opened[name].cut(last, 3)
    assert world.findings("/b.log") == [(last, Problem.CORRUPT, "/b.log")] * 3
    world.opened[NAMES[1]].lose(last)
    found = [problem for _, problem, _ in world.findings("/b.log")]
    assert found == [Problem.CORRUPT, Problem.LOST, Problem.CORRUPT]


def test_volumes_that_do_not_answer_are_named_and_their_replicas_are_not_called_lost(
    world: FileWorld,
) -> None:
    gone, down, here = NAMES
    world.files.close()
    world.files = world.process(down, here)
    world.opened[down].is_up = False
    before = world.rows(ReportedVolume)
    for path in ("", "/"):
        found = [(one.volume, one.problem, one.block) for one in world.files.upkeep.check(path).findings()]
        assert found == [(volume, Problem.UNREACHABLE, None) for volume in (gone, down)]
    assert [row.volume for row in world.rows(ReportedVolume) if row not in before] == [here]
    statuses = {one.volume: one for one in world.files.upkeep.statuses()}
    assert [bool(statuses[name].why_not) for name in NAMES] == [True, True, False]
    assert statuses[here].used_bytes


def test_what_changes_during_a_check_is_not_reported(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for volume in world.volumes.values():
        listed = volume.replicas

        def change(after: BlockId | None, limit: int, listed=listed) -> tuple[Replica, ...]:  # type: ignore[no-untyped-def]
            page: tuple[Replica, ...] = listed(after, limit)
            if any(one.name == "b.log" for one in world.files.list("/")):
                world.files.delete("/b.log")
                world.files.remove_deleted()
                with world.files.create("/c.log") as writer:
                    writer.write(TEXT)
            return page

        monkeypatch.setattr(volume, "replicas", change)
    assert world.problems() == set()
    assert world.files.open("/c.log").read() == TEXT


def test_a_file_that_is_closed_after_its_replica_was_looked_at_is_not_reported(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, opened = world.opened[NAMES[0]], list[FileWriter]()
    listed, look = volume.replicas, comparison.stat_replica

    def open_after(after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        page = listed(after, limit)
        opened.append(world.files.append("/b.log"))
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
    assert world.problems() == set()
    assert opened == []
    assert world.files.open("/b.log").read() == b"abcmore"


def test_replicas_that_a_removal_has_deleted_are_no_loss_while_it_runs_and_after_it_died(
    world: FileWorld,
) -> None:
    world.files.truncate("/a.log", 3)
    world.files.delete("/b.log")
    seen: list[object] = []

    def look(point: str, *, dies: bool) -> None:
        if point == "removal.replicas.after":
            FAILPOINTS.observer = None
            seen.extend(world.findings())
            done = world.files.upkeep.repair()
            seen.extend([done.marked, done.problems])
            FAILPOINTS.observer = partial(look, dies=True)
            if dies:
                raise Crash(point)

    FAILPOINTS.observer = partial(look, dies=False)
    with pytest.raises(Crash):
        world.files.remove_deleted()
    FAILPOINTS.observer = None
    assert seen == [0, []] * 2
    assert world.files.remove_deleted().kept_blocks == 0
    assert (len(world.blocks()), world.problems()) == (1, set())


def test_reads_are_paced_and_a_bad_limit_is_refused(world: FileWorld) -> None:
    began_s = world.clock.monotonic_s()
    list(world.files.upkeep.check(bytes_per_s=10).findings())
    assert world.clock.monotonic_s() - began_s == pytest.approx(3 * LENGTH / 10)
    with pytest.raises(InvalidInputError, match="more than 0"):
        world.files.upkeep.check(bytes_per_s=0)
