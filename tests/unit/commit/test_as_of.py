"""Tests of reads as of a turn, a time or a tag, and of the history that they read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lockgate.storage_core.commit.destination.as_of import AsOf, manifest_as_of
from lockgate.storage_core.commit.destination.log import CHECKPOINT_TURNS, DestinationLog
from lockgate.storage_core.commit.destination.manifest import read_changes
from lockgate.storage_core.commit.destination.named_files import as_read
from lockgate.storage_core.commit.destination.tags import create_tag, delete_tag, tags
from lockgate.storage_core.commit.destination.turn_history import difference, turn_history
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.ids import JobId
from tests.support.commit.destination import World, plain, write


def read(world: World, as_of: AsOf | None) -> tuple[int, list[str]]:
    found = manifest_as_of(DestinationLog(world.store, 4), as_of)
    return found.turn, sorted(map(plain, found.files))


def test_a_time_reads_the_last_turn_that_it_and_all_before_it_were_decided_by(world: World) -> None:
    began_s = world.clock.now_s()
    for number, jump_s in enumerate((0, 100, -50, 30)):  # decided at 0, 100, 50 and 80 s
        world.clock.jump(jump_s)
        world.run(f"job-{number}", {f"{number}.csv": b"1"})
    at = {after_s: datetime.fromtimestamp(began_s + after_s, UTC) for after_s in (-1, 0, 99, 100)}

    assert [read(world, at[after_s])[0] for after_s in (0, 99, 100)] == [1, 1, 4]
    assert read(world, at[100].isoformat())[0] == read(world, at[100].replace(tzinfo=None))[0] == 4
    with pytest.raises(InvalidInputError, match="turn 1 was decided at"):
        read(world, at[-1])


@pytest.mark.parametrize("checkpoints_have_times", [True, False])
def test_a_time_is_found_in_the_checkpoints_of_a_long_log(world: World, checkpoints_have_times: bool) -> None:
    log, turns = DestinationLog(world.store, 4), 2 * CHECKPOINT_TURNS + 5
    for turn in range(1, turns + 1):
        decided_s = 1_000.0 if turn == 50 else float(turn)  # the clock was once too far
        claim(
            log.store,
            layout.turn_outcome(turn),
            Outcome(job_id=JobId("a-g1"), turn=turn, verdict="passed", decided_s=decided_s),
        )
        if checkpoints_have_times:
            log.keep_checkpoint(turn)

    assert [log.turn_at(time_s) for time_s in (0.5, 49, 999, 1_000)] == [0, 49, 49, turns]


def test_a_tag_names_a_turn_for_ever_and_never_moves(world: World) -> None:
    log = DestinationLog(world.store)
    world.run("one", {"a.csv": b"1"})
    create_tag(log, "v1", 1, world.clock)
    world.run("two", {"b.csv": b"2"})

    assert create_tag(log, "v1", 1, world.clock).turn == 1
    assert read(world, "v1") == (1, ["a.csv"])
    with pytest.raises(ConflictError, match="turn 1 already"):
        create_tag(log, "v1", 2, world.clock)
    for name, turn in (("v3", 3), ("v0", 0), ("1", 1), ("../v", 1)):
        with pytest.raises(InvalidInputError):
            create_tag(log, name, turn, world.clock)
    delete_tag(log.store, "v1")
    assert list(tags(log.store)) == []
    with pytest.raises(InvalidInputError, match="no tag 'v1'"):
        read(world, "v1")


def test_a_turn_whose_files_are_gone_is_refused_with_the_first_that_can_be_read(world: World) -> None:
    world.run("one", {"day=1/a.csv": b"1", "day=2/a.csv": b"1"})
    world.run("two", {"day=3/a.csv": b"2"})
    world.run("three", {"day=1/a.csv": b"3"}, mode="replace", scope="partitions")
    world.run("four", {"day=4/a.csv": b"4"})

    for turn in (1, 2):
        with pytest.raises(InvalidInputError, match=rf"1 of {turn + 1} files of turn {turn} .* read is 3$"):
            read(world, turn)
    assert read(world, 3) == (3, ["day=1/a.csv", "day=2/a.csv", "day=3/a.csv"])


def test_what_was_added_after_a_turn_is_read_once_also_if_it_was_compacted(world: World) -> None:
    world.keep(turns=9)
    log = DestinationLog(world.store, 4)
    for number in range(1, 5):
        world.run(f"job-{number}", {f"{number}.csv": b"%d" % number})
    with world.open_job("merge", mode="compact") as job:
        read = as_read(world.store, log.manifest(), list(log.manifest(3).files), world.settings)
        write(job, "t", {"merged.csv": b"123"})
        job.commit(replaces=read)
    world.run("job-5", {"5.csv": b"5"})

    def added(after: int, until: int | None = None) -> tuple[int, list[bytes]]:
        found = read_changes(world.url, after, until, settings=world.settings)
        return found.turn, sorted(world.store.get(found.path(key)) for key in found.files)

    assert added(0, 2) == (2, [b"1", b"2"])
    assert added(2) == (6, [b"3", b"4", b"5"])
    assert added(6) == (6, [])
    with pytest.raises(InvalidInputError, match=r"turn 7 of .* is after turn 6"):
        added(7)


def test_what_was_added_is_refused_if_rows_were_removed_or_a_file_is_gone(world: World) -> None:
    log = DestinationLog(world.store, 4)
    world.run("one", {"a.csv": b"1"})
    with world.open_job("merge", mode="compact") as job:
        read = as_read(world.store, log.manifest(), list(log.manifest().files), world.settings)
        write(job, "t", {"merged.csv": b"1"})
        job.commit(replaces=read)
    with pytest.raises(InvalidInputError, match=r"1 of 1 files that were added .* are gone"):
        read_changes(world.url, 0, settings=world.settings)
    world.run("two", {"b.csv": b"2"}, mode="replace")
    with pytest.raises(InvalidInputError, match=r"turn 3 of .*, job two-g1, has removed 1 files"):
        read_changes(world.url, 1, settings=world.settings)


def test_history_and_diff_count_what_turns_add_and_remove(world: World) -> None:
    log = DestinationLog(world.store)
    world.run("one", {"a.csv": b"1"})
    world.run("two", {"b.csv": b"2", "c.csv": b"2"}, mode="replace")
    create_tag(log, "v2", 2, world.clock)
    world.run("three", {"d.csv": b"3"})

    turns = turn_history(log, limit=2)
    found = difference(log, 1, 3)

    assert [(each.turn, each.mode, each.files_added, each.files_removed, each.tags) for each in turns] == [
        (3, "append", 1, 0, ()),
        (2, "replace", 2, 1, ("v2",)),
    ]
    assert [each.turn for each in turn_history(log, before=2)] == [1]
    assert [plain(file.key) for file in found.added] == ["b.csv", "c.csv", "d.csv"]
    assert [plain(file.key) for file in found.removed] == ["a.csv"]
