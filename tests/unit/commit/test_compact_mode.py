"""Mode `compact`: the commit removes exactly the files that its driver has read, or nothing."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.destination import log
from lockgate.storage_core.commit.destination.named_files import as_read
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import ConflictError, InvalidInputError, JobFailedError
from tests.support.commit.destination import World, plain, write

SMALL = {"day=1/a.csv": b"1\n", "day=1/b.csv": b"2\n", "day=2/c.csv": b"3\n"}
OF_DAY_1 = {"day=1/a.csv", "day=1/b.csv"}


def read(world: World, names: set[str] = OF_DAY_1) -> dict[str, RemovedFile]:
    manifest = world.manifest()
    return as_read(
        world.store, manifest, [key for key in manifest.files if plain(key) in names], world.settings
    )


def compaction(world: World, data: bytes = b"1\n2\n", name: str = "compaction") -> Job:
    job = world.open_job(name, mode="compact")
    write(job, "merged", {"day=1/merged.csv": data})
    return job


def test_a_compaction_removes_the_files_that_it_has_read_and_nothing_else(world: World) -> None:
    world.run("first", SMALL)
    named = read(world)
    job = compaction(world)
    world.run("meanwhile", {"day=1/new.csv": b"4\n"})
    receipt = job.commit(replaces=named)
    assert (receipt.mode, receipt.files, receipt.removed_files) == ("compact", 1, 2)
    assert world.visible() == {"day=1/merged.csv": b"1\n2\n", "day=1/new.csv": b"4\n", "day=2/c.csv": b"3\n"}
    assert world.live() == world.keys()


@pytest.mark.parametrize("how", ["replaced", "compacted", "written again"])
def test_a_compaction_of_a_file_that_has_changed_since_is_aborted(world: World, how: str) -> None:
    world.run("first", SMALL, unique_filenames=False)
    named, job = read(world), compaction(world)
    if how == "replaced":
        world.run("other", {"day=1/new.csv": b"5\n"}, mode="replace", scope="partitions")
    elif how == "compacted":
        compaction(world, name="other").commit(replaces=read(world))
    else:
        again = {"day=1/a.csv": b"6\n"}
        world.run("other", again, unique_filenames=False, allow_irreversible=True)
    before = world.visible()
    with pytest.raises(ConflictError, match=r"of the 2 files .* run the compaction again"):
        job.commit(replaces=named)
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == before
    assert world.live() == world.keys()
    assert world.open_uploads() == []


def test_a_compaction_is_not_committed_by_a_process_that_has_not_read_its_files(world: World) -> None:
    world.run("first", SMALL)
    job = compaction(world)
    with pytest.raises(ConflictError, match="only that process knows them"):
        world.attach_to(job).commit()
    assert world.visible() == SMALL
    with (
        world.open_job("plain") as plain_job,
        pytest.raises(InvalidInputError, match="replaces= is for mode compact"),
    ):
        plain_job.commit(replaces={})


def test_the_next_compaction_of_a_name_keeps_what_the_last_one_wrote(world: World) -> None:
    world.run("first", SMALL)
    compaction(world).commit(replaces=read(world))
    world.run("second", {"day=2/d.csv": b"7\n"})
    job = world.open_job("compaction", mode="compact")
    write(job, "merged", {"day=2/merged.csv": b"3\n7\n"})
    job.commit(replaces=read(world, {"day=2/c.csv", "day=2/d.csv"}))
    assert world.visible() == {"day=1/merged.csv": b"1\n2\n", "day=2/merged.csv": b"3\n7\n"}


def test_a_job_whose_files_were_merged_is_not_recomputed_with_its_rows_twice(world: World) -> None:
    world.run("first", SMALL)
    compaction(world).commit(replaces=read(world))
    merged = {"day=1/merged.csv": b"1\n2\n", "day=2/c.csv": b"3\n"}
    with pytest.raises(ConflictError, match=r"compaction compaction-g1 has merged 2 files of generation 1"):
        world.run("first", SMALL)
    assert world.visible() == merged
    with pytest.raises(JobFailedError):
        world.attach("first-g2").commit()
    # A run that replaces whole partitions, or that keeps the rows of both, is not refused.
    world.run("first", SMALL, mode="replace", scope="partitions")
    assert world.visible() == SMALL
    compaction(world).commit(replaces=read(world))
    world.run("first", {"day=3/e.csv": b"8\n"}, rerun="append")
    assert world.visible() == {**merged, "day=3/e.csv": b"8\n"}


def test_a_job_whose_files_were_merged_is_refused_after_a_sweep_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_TURNS", 1)
    world.run("first", SMALL)
    compaction(world).commit(replaces=read(world))
    for number in range(3):
        with pytest.raises(ConflictError, match=r"has merged 2 files of generation 1"):
            world.run("first", SMALL)
        world.run("other", {f"day=2/{number}.csv": b"4\n"})
        world.clock.sleep(90 * 86_400.0)
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert [info.key for page in world.store.pages("_lockgate/names/") for info in page] == [
        "_lockgate/names/compaction/999999999.json",
        "_lockgate/names/first/999999996.json",
        "_lockgate/names/first/999999999.json",
        "_lockgate/names/other/999999997.json",
    ]


def test_a_job_with_the_name_of_a_compaction_does_not_remove_what_that_wrote(world: World) -> None:
    world.run("first", SMALL)
    compaction(world).commit(replaces=read(world))
    before = world.visible()
    with pytest.raises(ConflictError, match=r"generation 1 was a compaction"):
        world.run("compaction", {"day=3/e.csv": b"8\n"})
    assert world.visible() == before
    world.run("compaction", SMALL, mode="replace")
    assert world.visible() == SMALL
