"""A job owns its artefacts from its set-up to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.open_blobs import delete_ended
from lockgate.storage_core.blobs.registry.blob_rows import BlobJob, Reference
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.expired_jobs import recover_everything
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.errors import ArtefactsGoneError, InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.blobs.job_artefacts import (
    LIBRARY,
    blob_job,
    bytes_of,
    is_ended,
    owners,
    rows_of,
    server,
    sweep,
    sweep_all,
    uploaded,
    with_blobs,
)
from tests.support.blobs.server import INTERVAL_S
from tests.support.commit.destination import Crash, World, write

KEY = f"{'a' * 64}-{'0' * 32}"


@pytest.fixture
def blobs_world(world: World) -> Iterator[World]:
    yield with_blobs(world)
    FAILPOINTS.arm({})


def drop(world: World) -> bool:
    return delete_ended("etl-upload", world.settings, clock=world.clock)


def test_a_job_is_set_up_with_artefacts_and_keeps_them_until_its_end(blobs_world: World) -> None:
    handle = uploaded(blobs_world, {"rates.py": LIBRARY, "more.py": b"x = 1"})
    with blobs_world.open_job("etl", artefacts=handle) as job:
        write(job, "t", {"a.csv": b"1"})
        job.suspend(100 * INTERVAL_S)
    assert owners(blobs_world, handle) == [["job"], ["job"]]
    blobs_world.clock.sleep(10 * INTERVAL_S)
    assert sweep(blobs_world).swept == {}
    with server(blobs_world) as blobs:
        assert blobs.get("etl-upload", handle["blob_keys"][0]) == LIBRARY
    blobs_world.attach_to(job).commit()

    assert is_ended(blobs_world)
    assert bytes_of(blobs_world) != []
    assert drop(blobs_world)
    assert bytes_of(blobs_world) == []


@pytest.mark.parametrize(
    "change",
    [
        {"names": []},
        {"blob_keys": ["../x"]},
        {"job_id": "../etl"},
        {"job_id": "no_job"},
        {"uses": ["nothing"]},
        {"more": 1},
    ],
)
def test_an_invalid_handle_is_refused_before_anything_is_written(
    blobs_world: World, change: dict[str, object]
) -> None:
    handle = {"job_id": "etl", "blob_keys": [KEY], "names": ["rates.py"], **change}
    with pytest.raises(InvalidInputError, match="BlobUploadOperator"):
        blobs_world.open_job("etl", artefacts=handle)
    assert not Path(blobs_world.url).exists()


def test_without_a_journal_artefacts_are_refused(world: World) -> None:
    handle = {"job_id": "etl", "blob_keys": [KEY], "names": ["rates.py"]}
    with pytest.raises(InvalidInputError, match="LOCKGATE_JOURNAL_URL is none; nothing was set up"):
        world.open_job("etl", artefacts=handle)
    assert not Path(world.url).exists()


def test_a_set_up_that_comes_too_late_names_the_blob_and_leaves_nothing(blobs_world: World) -> None:
    handle = uploaded(blobs_world)
    blobs_world.clock.sleep(INTERVAL_S)
    sweep(blobs_world)

    with pytest.raises(ArtefactsGoneError, match="upload them again") as refused:
        blobs_world.open_job("etl", artefacts=handle)

    assert f"etl-upload/{handle['blob_keys'][0]} is gone" in str(refused.value)
    assert blobs_world.attach("etl-g1").phase() is JobPhase.FAILED
    assert blobs_world.recover() == []
    assert blob_job(blobs_world) is None
    assert (bytes_of(blobs_world), rows_of(blobs_world)) == ([], [])


def test_if_a_set_up_lacks_one_blob_the_other_blobs_are_swept(blobs_world: World) -> None:
    handle = uploaded(blobs_world)
    handle = {**handle, "blob_keys": [*handle["blob_keys"], KEY], "names": ["a.py", "b.py"], "uses": []}
    with pytest.raises(ArtefactsGoneError, match=KEY):
        blobs_world.open_job("etl", artefacts=handle)
    sweep_all(blobs_world)
    assert (bytes_of(blobs_world), rows_of(blobs_world)) == ([], [])


def test_artefacts_of_an_ended_job_are_refused_for_the_next_job(blobs_world: World) -> None:
    handle = uploaded(blobs_world)
    blobs_world.run("etl", {"a.csv": b"1"}, artefacts=handle)
    with pytest.raises(ArtefactsGoneError, match="upload them again"):
        blobs_world.open_job("etl", artefacts=handle)
    assert blobs_world.visible() == {"a.csv": b"1"}
    again = uploaded(blobs_world, job_id="again")
    blobs_world.run("etl", {"b.csv": b"2"}, artefacts=again)
    assert blobs_world.visible() == {"b.csv": b"2"}


def test_artefacts_of_another_running_job_are_refused_and_stay_with_it(blobs_world: World) -> None:
    handle = uploaded(blobs_world)
    first = blobs_world.open_job("etl", artefacts=handle)
    with pytest.raises(ArtefactsGoneError, match="belong to job etl-g1"):
        blobs_world.open_job("other", artefacts=handle)
    assert not is_ended(blobs_world)
    assert owners(blobs_world, handle) == [["job"]]
    first.commit()
    assert is_ended(blobs_world)


def test_a_retry_with_the_same_artefacts_finds_its_job_and_takes_them_once(blobs_world: World) -> None:
    handle = uploaded(blobs_world)
    first = blobs_world.open_job("etl", artefacts=handle)
    blobs_world.clock.sleep(60)
    second = blobs_world.open_job("etl", artefacts=handle)
    assert first.job_id == second.job_id
    assert owners(blobs_world, handle) == [["job"]]
    with blobs_world.journal.reading() as reading:
        (kept,) = reading.where(Reference, {})
    assert kept.taken_s == blobs_world.clock.now - 60
    second.abort()


def test_a_new_driver_keeps_recreatable_artefacts_while_they_exist(blobs_world: World) -> None:
    handle = uploaded(blobs_world, guarantee="recreatable")
    blobs_world.open_job("etl", artefacts=handle).suspend()
    with server(blobs_world) as blobs:
        blobs.refer("etl-upload", BlobKey(handle["blob_keys"][0]), "receiver:1")

    job = blobs_world.open_job("etl", artefacts=handle)

    assert owners(blobs_world, handle) == [["job"]]
    job.abort()


def test_a_new_driver_of_a_job_whose_artefacts_were_released_fails_and_the_job_ends(
    blobs_world: World,
) -> None:
    handle = uploaded(blobs_world, guarantee="recreatable")
    blobs_world.open_job("etl", artefacts=handle).suspend()
    with server(blobs_world) as blobs:
        blobs.fail("etl-upload")
    sweep_all(blobs_world)
    with pytest.raises(ArtefactsGoneError):
        blobs_world.open_job("etl", artefacts=handle)
    assert blobs_world.attach("etl-g1").phase() is JobPhase.FAILED


@pytest.mark.parametrize("how", ["abort", "recovery", "another process", "the journal was away"])
def test_every_way_to_end_a_job_deletes_its_blobs(blobs_world: World, how: str) -> None:
    job = blobs_world.open_job("etl", artefacts=uploaded(blobs_world))
    if how == "abort":
        blobs_world.attach(job.job_id).abort("by hand")
    elif how == "recovery":
        blobs_world.recover()
    elif how == "another process":
        without = World(blobs_world.root, blobs_world.url, blobs_world.clock, {"journal_url": "none"})
        without.attach(job.job_id).abort("by a process without a journal")
        assert not is_ended(blobs_world)
        list(rescan(blobs_world.url, settings=blobs_world.settings, clock=blobs_world.clock))
    else:
        FAILPOINTS.arm({"register.journal-write.before": "refuse@2"})
        job.abort()
        FAILPOINTS.arm({})
        assert not is_ended(blobs_world)
        list(recover_everything(blobs_world.settings, clock=blobs_world.clock))
    assert is_ended(blobs_world)
    sweep_all(blobs_world)
    assert (bytes_of(blobs_world), rows_of(blobs_world)) == ([], [])


def test_a_scan_of_a_deleted_destination_deletes_its_jobs_blobs(blobs_world: World) -> None:
    blobs_world.open_job("etl", artefacts=uploaded(blobs_world))
    for path in sorted(Path(blobs_world.url).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    list(rescan(blobs_world.url, settings=blobs_world.settings, clock=blobs_world.clock))
    assert is_ended(blobs_world)


def test_blobs_that_cannot_be_deleted_at_once_are_left_to_the_sweep(
    blobs_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    blobs_world.open_job("etl", artefacts=uploaded(blobs_world)).abort()
    FAILPOINTS.arm({"blob-ha-delete.list.before": "refuse"})
    assert not drop(blobs_world)
    FAILPOINTS.arm({})
    assert "the next sweep deletes them" in caplog.text
    sweep(blobs_world)
    assert bytes_of(blobs_world) == []


def test_a_driver_that_died_between_job_and_journal_leaves_its_artefacts_to_the_sweep(
    blobs_world: World,
) -> None:
    handle = uploaded(blobs_world)

    def die(point: str) -> None:
        if point == "lease.journal-write.before":
            raise Crash(point)

    FAILPOINTS.observer = die
    try:
        with pytest.raises(Crash):
            blobs_world.open_job("etl", artefacts=handle)
    finally:
        FAILPOINTS.observer = None
    blobs_world.recover()
    sweep_all(blobs_world)
    with blobs_world.journal.reading() as reading:
        assert reading.where(BlobJob, {}) == []
    assert bytes_of(blobs_world) == []
