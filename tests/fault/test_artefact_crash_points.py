"""Crash before and after every call of a job with artefacts: upload, set-up, end, and deletion.

See `test_commit_journal_crash_points.py`. Two invariants hold for every crash: blobs of a job that has not
ended can be read, also after sweeps; and after recovery and the sweeps nothing is left of the job.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.open_blobs import delete_ended
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.process_journal import close_journals
from tests.conftest import Summarise
from tests.support.blobs.job_artefacts import (
    bytes_of,
    check_live,
    rows_of,
    sweep,
    sweep_all,
    uploaded,
    with_blobs,
)
from tests.support.blobs.server import INTERVAL_S
from tests.support.commit.destination import World, write
from tests.support.commit.snapshots import Snapshot, observed, one_by_one, snapshots_of
from tests.support.soak import soak_only

pytestmark = pytest.mark.fault

OLD = {"old.csv": b"old"}
NEW = {"a.csv": b"new"}


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: only processes die here, not machines, so all written data remain."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Iterator[World]]:
    """Yield fresh destinations with a journal and two stores of blobs, without end."""
    yield (fresh(tmp_path / f"world-{number}") for number in count())
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def fresh(root: Path) -> World:
    world = one_by_one(with_blobs(World(root, str(root / "dest"))))
    world.run("old", OLD)  # probes the destination
    return world


def job(world: World, how: str) -> None:
    """Run a whole job, from the upload of its artefacts to their deletion."""
    handle = uploaded(world)
    with world.open_job("etl", artefacts=handle) as opened:
        write(opened, "t", NEW)
        if how == "commit":
            opened.commit()
        elif how == "abort":
            opened.abort()
        else:
            opened.suspend()
    if how == "a second driver":
        with world.open_job("etl", artefacts=handle) as opened:
            write(opened, "t", NEW)
            opened.commit()
    delete_ended(handle["job_id"], world.settings, clock=world.clock)


def recovered(snapshot: Snapshot, ran: World) -> tuple[bool, int]:
    """Sweep, recover and sweep again; return whether the job is published and the blobs of a live job."""
    close_journals()  # the process is dead
    world, where = snapshot.move_to(ran), snapshot.points[0]
    live = check_live(world)
    for _ in range(2):
        world.clock.sleep(INTERVAL_S)
        sweep(world)
    assert check_live(world) == live, where
    assert all(result.ended in TERMINAL for result in world.recover()), where
    list(rescan(world.url, settings=world.settings, clock=world.clock))
    sweep_all(world)
    assert (bytes_of(world), rows_of(world)) == ([], []), where
    assert world.visible() in (OLD, OLD | NEW), where
    assert world.open_uploads() == [], where
    return world.visible() != OLD, live


@pytest.mark.parametrize("how", ["commit", soak_only("abort"), soak_only("a second driver")])
def test_a_crash_at_any_call_of_a_job_with_artefacts_loses_no_live_blob_and_leaves_none(
    worlds: Iterator[World], how: str, tmp_path: Path, summarise: Summarise
) -> None:
    world = next(worlds)
    there: list[bool] = []
    live: set[int] = set()
    points: list[str] = []
    for snapshot in snapshots_of(world, lambda: job(world, how), tmp_path / "snapshots"):
        is_there, blobs = recovered(snapshot, world)
        there.append(is_there)
        live.add(blobs)
        points += snapshot.points
    summarise(f"{how}: {len(points)} crash points, {len(there)} of them with a state of their own")
    assert {"lease.journal-write.before", "lease.journal-write.after"} <= set(points)
    assert {"blob-finish.journal-write.after", "blob-ha-delete.delete_many.after"} <= set(points)
    assert there == sorted(there)
    assert there[-1] is (how != "abort")
    assert live == {0, 1}


def test_a_crash_of_a_set_up_that_comes_too_late_leaves_nothing(
    worlds: Iterator[World], tmp_path: Path
) -> None:
    world = next(worlds)
    handle = uploaded(world)
    world.clock.sleep(INTERVAL_S)
    sweep(world)

    def set_up() -> None:
        with pytest.raises(LockgateError, match="upload them again"):
            world.open_job("etl", artefacts=handle)

    for snapshot in snapshots_of(world, set_up, tmp_path / "snapshots"):
        assert recovered(snapshot, world) == (False, 0)
    assert world.attach("etl-g1").phase() is JobPhase.FAILED


@pytest.mark.parametrize("action", ["lost", "refuse"])
@pytest.mark.soak
def test_a_call_of_a_set_up_whose_answer_is_lost_or_refused_loses_no_live_blob_and_leaves_none(
    worlds: Iterator[World], action: str
) -> None:
    names: list[str] = []
    world = next(worlds)
    with observed(names.append):
        job(world, "commit")
    side = ".after" if action == "lost" else ".before"
    for name in dict.fromkeys(name for name in names if ".journal-" in name and name.endswith(side)):
        close_journals()
        shutil.rmtree(world.root)
        world = next(worlds)
        FAILPOINTS.arm({name: action})
        try:
            job(world, "commit")
        except LockgateError:
            raised = True
        else:
            raised = False
        finally:
            FAILPOINTS.arm({})
        check_live(world)
        world.recover()
        list(rescan(world.url, settings=world.settings, clock=world.clock))
        sweep_all(world)
        assert (bytes_of(world), rows_of(world)) == ([], []), name
        assert raised or world.visible() == OLD | NEW, name
