"""Sweeps delete the folders of ended jobs; no crash or race makes a generation begin twice or loses its data.

A state that a crash of a sweep or a set-up leaves is used by another process. For a race, one process does
all of its work between two calls of another one.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Self

import pytest

from lockgate.storage_core.commit.destination import log
from lockgate.storage_core.commit.records.job_listing import list_job_folders
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import SweepReport, sweep_uploads
from lockgate.storage_core.errors import LockgateError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.stores import Store
from tests.conftest import Summarise
from tests.support.commit.arbitrated_destination import arbiter_world, found_by_another, left_by
from tests.support.commit.destination import RENEWERS, Crash, ManualClock, World
from tests.support.commit.snapshots import Snapshot, one_by_one, snapshots_of
from tests.support.s3.destination import S3World, s3_world
from tests.support.soak import rounds

pytestmark = pytest.mark.fault

MONTH_S: Final = 31 * 86_400
OTHER: Final = {"other.csv": b"1"}
OLD: Final = {"old.csv": b"1"}
NEW: Final = {"new.csv": b"2"}
AGAIN: Final = {"again.csv": b"3"}


@dataclass
class OnDisk:
    """Copies of a destination in a directory."""

    base: Snapshot
    now: float
    root: Path

    def fresh(self) -> World:
        """Return the destination as it was at first."""
        world = self.base.copy_to(self.root / f"copy-{next(_numbers)}")
        return replace(one_by_one(world), clock=ManualClock(self.now))

    def crashes(self, run: Callable[[World], object]) -> Iterator[tuple[str, World]]:
        """Run; yield the destination as another process finds it after a crash at each call."""
        world = self.fresh()
        for left in snapshots_of(world, lambda: run(world), self.root):
            yield left.points[0], replace(left.world(), clock=ManualClock(world.clock.now))


@dataclass
class OnS3:
    """A destination in a strict S3, or in one without conditions, whose arbiter is a journal."""

    s3: S3World

    def __post_init__(self) -> None:
        (self.base,) = left_by(self.s3, self.s3.driver, lambda: None)

    def fresh(self) -> World:
        return found_by_another(self.s3, self.base)

    def crashes(self, run: Callable[[World], object]) -> Iterator[tuple[str, World]]:
        world = self.fresh()
        for left in left_by(self.s3, world, lambda: run(world)):
            yield left.points[0], found_by_another(self.s3, left)


Place = OnDisk | OnS3
_numbers = count()


@pytest.fixture(params=["directory", "s3", "arbiter"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return a destination with two generations of a name and another job, all ended a month ago."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(log, "CHECKPOINT_TURNS", 1)

    def make(world: World) -> None:
        world.run("other", OTHER)
        world.run("sales", OLD)
        world.run("sales", NEW)
        world.clock.sleep(MONTH_S)

    if request.param == "directory":
        world = one_by_one(World(tmp_path / "first", str(tmp_path / "first" / "dest")))
        last = snapshots_of(world, lambda: make(world), tmp_path / "snapshots")[-1]
        yield OnDisk(last, world.clock.now, tmp_path)
    elif request.param == "s3":
        journal_url = f"sqlite:///{tmp_path / 'journal.db'}"
        with s3_world(tmp_path, monkeypatch, parallelism=1, journal_url=journal_url) as s3:
            make(s3.driver)
            yield OnS3(s3)
    else:
        with arbiter_world(tmp_path, monkeypatch) as s3:
            make(s3.driver)
            yield OnS3(s3)
    FAILPOINTS.observer = None


def sweep(world: World) -> SweepReport:
    return sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)


def jobs_at(store: Store) -> set[str]:
    return set(list_job_folders(store).jobs)


@dataclass
class Pause:
    """While a process runs, others do all their work before one of its calls; it may die some calls later."""

    before: int
    meanwhile: Callable[[], object]
    dies_after: int = 0
    points: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        FAILPOINTS.observer = self.look
        return self

    def __exit__(self, *error: object) -> None:
        FAILPOINTS.observer = None

    def look(self, point: str) -> None:
        # Within a journal's write, this process could not write anything else.
        if threading.current_thread().name in RENEWERS or ".journal-" in point:
            return
        self.points.append(point)
        passed = len(self.points) - 1
        if passed == self.before:
            FAILPOINTS.observer = None
            self.meanwhile()
            FAILPOINTS.observer = self.look
        if self.dies_after and passed >= self.before + self.dies_after:
            raise Crash(point)

    @property
    def where(self) -> str:
        return f"{self.points[min(self.before, len(self.points) - 1)]}, dies after {self.dies_after}"

    @property
    def is_over(self) -> bool:
        """Whether the process has ended before that call."""
        return len(self.points) <= self.before


def check(world: World, where: str, *, least: int, files: dict[str, bytes] | None = None) -> None:
    """Recover, sweep and run the name again; check that no data is lost and no generation is used twice."""
    assert world.visible().items() >= {**OTHER, **(NEW if files is None else files)}.items(), where
    results = world.recover()
    assert all(result.ended in TERMINAL for result in results), (where, results)
    assert world.live() == world.keys(), where
    again = world.run("sales", AGAIN)
    assert int(again.job_id.removeprefix("sales-g")) >= least, where
    assert world.visible() == {**OTHER, **AGAIN}, where
    world.clock.sleep(MONTH_S)
    sweep(world)
    sweep(world)  # what is left of a folder without an end
    assert jobs_at(world.store) == set(), where
    assert world.visible() == {**OTHER, **AGAIN}, where
    assert world.live() == world.keys(), where


def test_a_sweep_deletes_the_folders_of_ended_jobs_and_the_next_generation_follows(place: Place) -> None:
    world = place.fresh()
    assert {swept.action for swept in sweep(world).jobs} == {"delete the folder of an ended job"}
    assert jobs_at(world.store) == set()
    assert sweep(world).jobs == ()
    with pytest.raises(ObjectNotFoundError, match="it has ended \\(committed\\), and a sweep has deleted"):
        world.attach("sales-g2")
    once = world.open_job("sales", rerun="once")
    assert (once.job_id, once.phase()) == ("sales-g2", JobPhase.COMMITTED)
    assert once.receipt is not None
    assert (once.commit(), once.receipt.turn) == (once.receipt, 3)
    check(world, "a whole sweep", least=3)


def test_a_crash_at_any_call_of_a_sweep_loses_no_generation(place: Place, summarise: Summarise) -> None:
    points = 0
    for where, world in place.crashes(sweep):
        once = world.open_job("sales", rerun="once")
        assert (once.job_id, once.receipt is not None) == ("sales-g2", True), where
        check(world, where, least=3)
        points += 1
    summarise(f"{points} states that crashes of a sweep leave")
    assert points > 8


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_crash_at_any_call_of_a_set_up_loses_no_generation(place: Place, is_swept: bool) -> None:
    def set_up(world: World) -> None:
        if is_swept:
            FAILPOINTS.observer, observer = None, FAILPOINTS.observer
            sweep(world)
            FAILPOINTS.observer = observer
        world.open_job("sales").close()

    for where, world in place.crashes(set_up):
        check(world, where, least=3)


def test_a_sweep_within_a_set_up_uses_no_generation_twice(place: Place) -> None:
    for number in count(0, rounds(2, 1)):
        world = place.fresh()
        with Pause(number, partial(sweep, world)) as pause:
            job = world.open_job("sales")
        assert job.job_id == "sales-g3", pause.where
        job.abort()
        check(world, pause.where, least=4)
        if pause.is_over:
            break


def test_a_job_within_a_sweep_uses_no_generation_twice(place: Place) -> None:
    for number in count(0, rounds(5, 1)):
        world = place.fresh()
        with Pause(number, lambda world=world: world.run("sales", AGAIN)) as pause:  # type: ignore[misc]
            sweep(world)
        if pause.is_over:
            break
        check(world, pause.where, least=4, files=AGAIN)


def test_a_set_up_that_was_paused_for_a_month_touches_no_job_that_has_ended_meanwhile(
    place: Place, summarise: Summarise
) -> None:
    """It may also die at a later call: what it has written then is no job."""
    # With this committer, an abort deletes files that readers see already.
    options = {"committer": "file-v2", "allow_unsafe": True} if isinstance(place, OnDisk) else {}

    def live_a_life(world: World) -> None:
        assert world.run("sales", AGAIN, **options).job_id == "sales-g3"
        world.clock.sleep(MONTH_S)
        sweep(world)

    outcomes: Counter[str] = Counter()
    for number in count(0, 1 if isinstance(place, OnDisk) else rounds(4, 1)):
        for dies_after in (0, *range(1, rounds(2, 9))):
            world = place.fresh()
            with Pause(number, partial(live_a_life, world), dies_after) as pause:
                try:
                    job = world.open_job("sales", **options)
                except (LockgateError, Crash) as error:
                    outcomes[type(error).__name__] += 1
                else:
                    outcomes[job.job_id] += 1
                    job.close()
            if pause.is_over:
                summarise(str(dict(outcomes)))
                return
            if not dies_after:
                with pytest.raises(ObjectNotFoundError, match="a sweep has deleted its folder"):
                    world.attach("sales-g3")
            check(world, pause.where, least=4, files=AGAIN)
