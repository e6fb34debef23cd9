"""Job ids differ between runs and are the same for a retry of a run."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.ids import ShortId, new_attempt_id, new_job_attempt_id, new_token, short_id
from tests.support.commit.destination import World, write


def test_jobs_started_in_the_same_second_differ_in_every_id(world: World) -> None:
    jobs = [world.open_job(f"run-{number}") for number in range(20)]
    assert len({job.job_id for job in jobs}) == 20
    assert len({job.short_id for job in jobs}) == 20
    assert len({job.job_attempt for job in jobs}) == 20
    assert len({job.record.token for job in jobs}) == 20
    assert {job.record.created_s for job in jobs} == {world.clock.now_s()}
    for job in jobs:
        write(job, "t", {"a.csv": job.job_id.encode()})
    for job in jobs:
        job.commit()
    assert len(world.keys()) == 20


@pytest.mark.parametrize("new_id", [new_token, new_attempt_id, new_job_attempt_id])
def test_an_id_made_for_one_execution_is_never_made_again(new_id: object) -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000  # type: ignore[operator]


def test_a_retry_of_a_run_finds_its_own_job_at_any_time(world: World) -> None:
    first = world.open_job("sales")
    first.close()
    world.clock.now += 86_400
    again = world.open_job("sales")
    assert (again.job_id, again.short_id) == (first.job_id, first.short_id)
    assert [job.job_id for job in list_jobs(world.url, settings=world.settings)] == [first.job_id]
    again.close()


def test_generations_of_a_name_differ_in_their_short_ids(world: World) -> None:
    first, second = (world.run("sales", {"a.csv": b"1"}) for _ in range(2))
    assert (first.job_id, second.job_id) == ("sales-g1", "sales-g2")
    assert first.short_id != second.short_id


def test_two_jobs_whose_short_ids_would_be_the_same_get_two(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = world.open_job("taken").record

    def colliding(destination: str, job: str, salt: int = 0) -> ShortId:
        return taken.short_id if salt == 0 else short_id(destination, job, salt)  # type: ignore[arg-type]

    monkeypatch.setattr("lockgate.storage_core.commit.setup.job_setup.short_id", colliding)
    other: JobRecord = world.open_job("other").record
    assert other.short_id != taken.short_id
