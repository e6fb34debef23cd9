"""Quarantine of a job whose records cannot be read: others commit again, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from lockgate.storage_core.commit.recovery.quarantine import Quarantine, quarantine_job
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import (
    ConflictError,
    ObjectNotFoundError,
    TurnBusyError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.cli import Run
from tests.support.commit.destination import World, plain
from tests.support.commit.malformed_records import NEW, OLD, RECORDS, Stage, died_at
from tests.support.commit.snapshots import one_by_one, snapshots_of

BLOCKING = ["COMMIT_STARTED", "plan", "plan shard"]


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


def damaged(record: str, world: World) -> Stage:
    """Return a job that died after its decision, with this record cut in half."""
    stage = RECORDS[record](world)
    world.store.put(stage.key, world.store.get(stage.key)[:20])
    world.clock.sleep(1_000)  # its lease has lapsed
    return stage


def half_completed(world: World) -> Stage:
    """Return a job that died with one of two files completed, and whose decision is cut."""
    job = died_at(one_by_one(world), "complete.complete.after")
    key = job._folder.key("COMMIT_STARTED")
    world.store.put(key, b"{")
    world.clock.sleep(1_000)
    return Stage(world, key, job, {**OLD})


def quarantine(stage: Stage, *, dry_run: bool = False) -> Quarantine:
    world = stage.world
    return quarantine_job(
        world.url,
        stage.job.job_id,
        reason="its disk failed",
        dry_run=dry_run,
        settings=world.settings,
        clock=world.clock,
    )


def own_uploads(world: World) -> list[str]:
    """Return the open uploads of the quarantined job."""
    return sorted(key for key in world.open_uploads() if plain(key) in NEW)


def everything(world: World) -> Mapping[str, bytes]:
    """Return the bytes of all objects and uploads on the disk."""
    root = Path(world.url)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "/locks/" not in str(path)
    }


@pytest.mark.parametrize("record", BLOCKING)
def test_a_quarantine_lets_others_commit_and_keeps_every_byte_of_the_job(world: World, record: str) -> None:
    stage = damaged(record, world)
    with pytest.raises(TurnBusyError, match=rf"`lockgate jobs quarantine .* {stage.job.job_id}`"):
        world.run("next", {"c.csv": b"3"})
    before, uploads = everything(world), own_uploads(world)
    assert len(uploads) == len(NEW)

    found = quarantine(stage)

    assert (found.turn, found.done) == (2, True)
    assert any(stage.key in fault for fault in found.unreadable)
    after = everything(world)
    lost = [name for name, data in before.items() if after.get(name) != data]
    assert lost == [stage.job._folder.key("COMMIT_STARTED")]
    assert [after[kept] for kept in found.kept] == [before[lost[0]]]
    world.run("other", {"c.csv": b"3"}, mode="replace")
    assert world.visible() == {"c.csv": b"3"}
    assert own_uploads(world) == uploads
    again = quarantine(stage)
    assert (again.turn, again.kept, again.done) == (None, found.kept, True)


def test_a_dry_run_of_a_quarantine_changes_nothing(world: World) -> None:
    stage = damaged("COMMIT_STARTED", world)
    before = everything(world)
    found = quarantine(stage, dry_run=True)
    assert (found.turn, found.kept, found.done) == (2, (), False)
    assert everything(world) == before


def test_a_job_in_quarantine_is_left_alone_by_recovery_and_sweeps(world: World) -> None:
    stage = half_completed(world)
    quarantine(stage)
    uploads = world.open_uploads()
    assert len(uploads) == 1
    (found,) = [result for result in world.recover() if result.job_id == stage.job.job_id]
    assert (found.action, found.ended, found.needs_an_operator) == (
        RecoveryAction.LEAVE,
        JobPhase.QUARANTINED,
        False,
    )
    report = sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert [upload.reason for upload in report.uploads] == ["its job is in quarantine"]
    # Its completed file belongs to it: a job that replaces everything keeps it.
    world.run("other", {"c.csv": b"3"}, mode="replace")
    assert (len(NEW.keys() & world.visible().keys()), world.open_uploads()) == (1, uploads)
    assert set(map(plain, world.live())) == {"c.csv"}


def test_the_name_of_a_job_in_quarantine_is_free_for_the_next_run(world: World) -> None:
    stage = half_completed(world)
    quarantine(stage)
    again = world.run("sales", NEW)
    assert again.job_id == "sales-g2"
    assert set(map(plain, world.live())) == {"old.csv", *NEW}


def test_a_job_in_quarantine_commits_no_more_and_an_abort_deletes_it(world: World) -> None:
    stage = half_completed(world)
    quarantine(stage)
    with pytest.raises(ConflictError, match=r"is in quarantine \(its disk failed\).*`lockgate jobs abort "):
        world.attach(stage.job.job_id).commit()
    assert world.attach(stage.job.job_id).abort("not needed") is JobPhase.FAILED
    assert (world.visible(), world.open_uploads()) == (OLD, [])
    assert not [key for key in everything(world) if "sales-g1/tasks" in key]
    with pytest.raises(ConflictError, match="can be read"):
        quarantine(stage)


def test_a_job_whose_identity_cannot_be_read_can_be_quarantined(world: World) -> None:
    job = died_at(world, "turn.create.after")
    world.store.put(job._folder.key("job.json"), b"{")
    world.clock.sleep(1_000)
    stage = Stage(world, job._folder.key("job.json"), job, OLD)
    with pytest.raises(TurnBusyError, match="quarantine"):
        world.run("next", {"c.csv": b"3"})
    assert quarantine(stage).done
    world.run("other", {"c.csv": b"3"})
    result = recover_job(world.url, job.job_id, settings=world.settings, clock=world.clock)
    assert (result.ended, result.needs_an_operator) == (JobPhase.QUARANTINED, False)


def test_a_readable_published_ended_or_living_job_is_not_quarantined(world: World) -> None:
    world.run("ended", OLD)
    world.store.put("_lockgate/jobs/ended-g1/COMMIT_STARTED", b"{")
    open_job = world.open_job("open")
    live = world.open_job("live")
    world.store.put(live._folder.key("COMMIT_STARTED"), b"{")
    for job, why in (
        ("ended-g1", r"has ended \(COMMIT_SUCCESS\)"),
        ("open-g1", "all its records can be read"),
        ("live-g1", "its driver is alive"),
        ("none-g1", "no job none-g1"),
    ):
        before = everything(world)
        with pytest.raises((ConflictError, ObjectNotFoundError), match=why):
            quarantine_job(world.url, job, dry_run=False, settings=world.settings, clock=world.clock)
        assert everything(world) == before
    open_job.close()
    live.close()


def test_a_publication_that_comes_first_wins_over_a_quarantine(world: World) -> None:
    job = died_at(world, "decide.create.after")
    key = job._folder.key("COMMIT_STARTED")
    decision = world.store.get(key)
    world.store.put(key, b"{")
    world.clock.sleep(1_000)

    def publish(name: str) -> None:
        if name == "quarantine.create.before":
            FAILPOINTS.observer = None
            world.store.put(key, decision)  # as another process that has read it before
            world.attach(job.job_id).finish()

    FAILPOINTS.observer = publish
    with pytest.raises(ConflictError, match="was published in turn 2 meanwhile"):
        quarantine(Stage(world, key, job, OLD))
    assert world.visible() == {**OLD, **NEW}
    assert job.phase() is JobPhase.COMMITTED


@pytest.mark.parametrize("record", BLOCKING)
def test_a_quarantine_that_dies_at_any_call_can_be_repeated(tmp_path: Path, record: str) -> None:
    world = one_by_one(World(tmp_path / "first", str(tmp_path / "first" / "dest")))
    stage = damaged(record, world)
    uploads = sorted(world.open_uploads())
    for snapshot in snapshots_of(world, lambda: quarantine(stage), tmp_path / "snapshots"):
        found = snapshot.world()
        found.clock.sleep(1_000)
        assert quarantine(Stage(found, stage.key, stage.job, {})).done, snapshot.points[0]
        found.run("other", {"c.csv": b"3"})
        assert sorted(found.open_uploads()) == uploads, snapshot.points[0]


def test_the_command_only_reports_without_yes(world: World, run: Run) -> None:
    world.clock.now = 1_000_000_000.0  # long before the time of the command
    stage = damaged("COMMIT_STARTED", world)
    words = ("jobs", "quarantine", world.url, stage.job.job_id)
    before = everything(world)
    dry = run(*words)
    assert (dry.exit_code, everything(world)) == (0, before)
    assert "a dry run: nothing was changed; add --yes" in dry.output
    done = run(*words, "--yes", "--reason", "its disk failed")
    assert (done.exit_code, "in quarantine" in done.output) == (0, True)
    assert "quarantined" in run("jobs", "list", world.url).output
    again = run(*words, "--yes")
    assert again.exit_code == 0
    aborted = run("jobs", "abort", world.url, stage.job.job_id)
    assert (aborted.exit_code, world.open_uploads()) == (0, [])
