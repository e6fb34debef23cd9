"""A log reader sees the old or the new table while a killed replacement is finished by recovery."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from tests.conftest import Summarise
from tests.support.commit.destination import ManualClock, World
from tests.support.processes.drivers import COMMITTED, KILLED, Death, JobOrder, Place, start_driver
from tests.support.processes.table_reader import digest_of, files_of, reading, rows_of

pytestmark = pytest.mark.fault

OLD, NEW = (digest_of(rows_of(version)) for version in ("old", "new"))
BEFORE = {
    "after the decision": "decide.create.after",
    "during the completions": "complete.complete.after@4",
    "before the outcome": "outcome.create.before",
}
AFTER = {
    "after the outcome": "outcome.create.after",
    "before the deletions": "remove.delete.before",
    "during the deletions": "remove.delete.after@4",
    "before the summary": "success.put.before",
}
DAY = 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path, str(tmp_path / "table"), ManualClock(time.time()))
    found.run("old", files_of("old"))
    return found


def place(world: World) -> Place:
    return Place(world.url, {"home": world.root / "home"})


def drive(world: World, death: Death | None = None, version: str = "new") -> int:
    order = JobOrder(version, "replace", files_of(version))
    process = start_driver(place(world), order, death)
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("when", [*BEFORE, *AFTER])
def test_a_log_reader_sees_the_old_or_the_new_table_whenever_the_driver_dies(world: World, when: str) -> None:
    with reading(world.url) as reader:
        assert reader.catch_up() == {OLD}
        assert drive(world, Death(at_point={**BEFORE, **AFTER}[when])) == KILLED
        assert reader.catch_up() == {OLD if when in BEFORE else NEW}
        (recovered,) = world.recover()
        assert recovered.ended is JobPhase.COMMITTED
        assert reader.catch_up() == {NEW}
    versions = [seen.digest for seen in reader.seen]
    assert versions == sorted(versions, key=[OLD, NEW].index)  # no other state, and no switch back
    assert world.live() == world.keys()


@pytest.mark.parametrize("when", ["during the completions", "after the outcome"])
@pytest.mark.soak
def test_with_files_kept_in_place_no_read_starts_over(world: World, when: str) -> None:
    world.keep(in_place=True)
    with reading(world.url) as reader:
        reader.catch_up()
        death = Death(at_point={**BEFORE, **AFTER}[when])
        assert drive(world, death) == KILLED
        (recovered,) = world.recover()
        assert recovered.ended is JobPhase.COMMITTED
        assert reader.catch_up() == {NEW}
        assert {seen.digest for seen in reader.seen} <= {OLD, NEW}
        assert sum(seen.retries for seen in reader.seen) == 0
    assert len(world.keys()) == 2 * len(world.live())
    for _ in range(2):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
        world.clock.sleep(DAY)
    assert world.live() == world.keys()


@pytest.mark.soak
def test_a_reader_beside_many_replacements_sees_one_whole_table_each_time(
    world: World, summarise: Summarise
) -> None:
    versions = [f"version {number}" for number in range(6)]
    with reading(world.url) as reader:
        reader.catch_up()
        for version in versions:
            assert drive(world, version=version) == COMMITTED
        assert reader.catch_up() == {digest_of(rows_of(versions[-1]))}
    order = [OLD, *(digest_of(rows_of(version)) for version in versions)]
    assert [order.index(seen.digest) for seen in reader.seen] == sorted(
        order.index(seen.digest) for seen in reader.seen
    )
    summarise(f"{len(reader.seen)} readings, {sum(seen.retries for seen in reader.seen)} restarted")
