"""The records of a job that one page shows."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.job_view import read_records
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from tests.support.commit.destination import World, write


def folder_of(world: World, job_id: str) -> JobFolder:
    return JobFolder(world.store, JobId(job_id))


def requests_of(folder: JobFolder) -> int:
    store = folder.store
    assert isinstance(store, InstrumentedStore)
    return sum(store.requests.values())


def test_a_page_reads_as_many_records_of_a_large_job_as_of_a_small_one(world: World) -> None:
    counts = []
    for tasks in (1, 25):
        with world.open_job(f"etl-{tasks}") as job:
            for number in range(tasks):
                write(job, f"task-{number}", {f"{tasks}-{number}.csv": b"1"})
        for _ in ("open", "committed"):
            folder = folder_of(world, job.job_id)
            assert read_records(folder).unread == ()
            counts.append(requests_of(folder))
            if job.phase() is JobPhase.OPEN:
                world.attach(job.job_id).commit()
    assert counts[:2] == counts[2:]
    assert max(counts) < 12


@pytest.mark.parametrize("name", ["job.json", "COMMIT_STARTED", "COMMIT_SUCCESS", "report.json"])
def test_a_record_that_cannot_be_read_does_not_hide_the_others(world: World, name: str) -> None:
    job = world.run("etl", {"a.csv": b"1"})
    folder = folder_of(world, job.job_id)
    world.store.put(folder.key(name), b"{")
    found = read_records(folder)
    assert len(found.unread) == 1
    assert name in found.unread[0]
    assert (found.record is None) == (name == "job.json")
    assert (found.report is None) == (name == "report.json")
    assert (found.phase is None) == name.startswith("COMMIT")


def test_a_folder_without_job_json_is_partly_deleted(world: World) -> None:
    job = world.run("etl", {"a.csv": b"1"})
    world.store.delete(folder_of(world, job.job_id).key("job.json"))
    found = read_records(folder_of(world, job.job_id))
    assert found.is_partly_deleted
    assert found.phase is JobPhase.COMMITTED
    assert found.unread == ()
