"""Lists of jobs are read by an index on both databases, wherever a page lies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from lockgate.storage_core.commit.registry import job_lists
from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.commit.registry.job_lists import NamedPlace, Place, Task
from lockgate.storage_core.journal import Journal, Mutation, Reading, open_journal
from tests.support.commit.destination import ManualClock
from tests.support.postgres import Server

LAKE = "s3://lake/sales"
PHASES = ["open", "committed"]

READS: dict[str, Callable[[Reading], Any]] = {
    "newest": lambda reading: job_lists.by_time(reading, PHASES, limit=2),
    "deep": lambda reading: job_lists.by_time(reading, PHASES, after=Place(50.0, LAKE, "a"), limit=2),
    "oldest": lambda reading: job_lists.by_time(reading, PHASES, newest_first=False, limit=2),
    "destination": lambda reading: job_lists.by_time(reading, PHASES, destination=LAKE, limit=2),
    "attention": lambda reading: job_lists.by_time(reading, [], attention=True, limit=2),
    "name": lambda reading: job_lists.by_name(reading, PHASES, "job-0", limit=2),
    "name at a destination": lambda reading: job_lists.by_name(
        reading, PHASES, "job-0", destination=LAKE, limit=2
    ),
    "deep name": lambda reading: job_lists.by_name(
        reading, PHASES, "job", after=NamedPlace("job-050", LAKE, "z"), limit=2
    ),
    "one name": lambda reading: job_lists.named_exactly(reading, "job-007"),
    "run": lambda reading: job_lists.of_task(reading, Task("dag", "run-7"), limit=2),
    "task": lambda reading: job_lists.of_task(reading, Task("dag", "run-7", "t", -1), limit=2),
    "days": lambda reading: job_lists.day_totals(reading, 0, 5),
    "days of a destination": lambda reading: job_lists.day_totals(reading, 0, 5, LAKE),
    "unended": lambda reading: job_lists.count_unended(reading, ["open"], 10),
}


@pytest.fixture
def jobs(timed_journal: Journal) -> Journal:
    timed_journal.write([
        Mutation(
            op=RecordJob(
                destination=LAKE, job_id=f"job-{number:03d}-g1", name=f"job-{number:03d}",
                short_id="abcdefghij", committer="magic", mode="append",
                phase="open" if number % 10 == 0 else "committed", job_attempt="a", set_up_s=float(number),
                ended_s=float(number), dag_id="dag", run_id=f"run-{number}", task_id="t", map_index=-1,
            )
        )
        for number in range(100)
    ])  # fmt: skip
    return timed_journal


@pytest.mark.parametrize("name", READS)
def test_a_list_is_read_by_an_index_and_never_from_all_jobs(jobs: Journal, name: str) -> None:
    with jobs.reading() as reading:
        connection, statements = reading.connection, list[tuple[str, Any]]()

        def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            statements.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", record)
        READS[name](reading)
        event.remove(connection, "before_cursor_execute", record)
        is_sqlite = reading.database.is_sqlite
        if not is_sqlite:  # a small table is cheaper to read whole
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        assert statements
        for statement, parameters in statements:
            explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
            rows = connection.exec_driver_sql(explain + statement, parameters).all()
            plan = "\n".join(str(row[-1]) for row in rows)
            assert re.search("job_by_|job_day_(pkey|1 )", plan), plan
            assert "SCAN job" not in plan, plan
            assert "Seq Scan" not in plan, plan


def test_a_page_deep_in_a_list_has_the_next_jobs(jobs: Journal) -> None:
    with jobs.reading() as reading:
        deep = READS["deep"](reading)
        assert [job.set_up_s for job in deep] == [49.0, 48.0]
        assert [job.name for job in READS["deep name"](reading)] == ["job-051", "job-052"]
        assert job_lists.count_unended(reading, ["open"], 7) == 7
        assert job_lists.count_unended(reading, ["open"], 70) == 10


def record_names(journal: Journal) -> list[NamedPlace]:
    """Record jobs whose names and destinations no two locales sort alike; return their places."""
    phases = ["open", "committed", "failed"]
    made = [
        RecordJob(
            destination=place,
            job_id=f"{name}-g{number}",
            name=name,
            short_id="abcdefghij",
            committer="magic",
            mode="append",
            phase=phases[number % 3],  # type: ignore[arg-type]
            job_attempt="a",
            set_up_s=1.0,
            ended_s=1.0,
        )
        for place in ("s3://lake/a", "s3://lake/B", "s3://lake/_c")
        for name in ("x", "Y")
        for number in range(1, 5)
    ]
    journal.write([Mutation(op=one) for one in made])
    return sorted(NamedPlace(one.name, one.destination, one.job_id) for one in made)


@pytest.mark.parametrize("destination", [None, "s3://lake/B"])
@pytest.mark.parametrize("limit", [1, 5])
def test_no_page_of_jobs_of_one_name_misses_one(
    timed_journal: Journal, destination: str | None, limit: int
) -> None:
    places = record_names(timed_journal)
    check_pages(timed_journal, places, destination, limit)


def test_no_page_of_jobs_of_one_name_misses_one_in_a_database_with_another_locale(
    postgres: Server, clock: ManualClock
) -> None:
    with open_journal(postgres.new_english_database("english"), clock=clock) as journal:
        places = record_names(journal)
        for destination in (None, "s3://lake/a", "s3://lake/B"):
            for limit in (1, 2, 5):
                check_pages(journal, places, destination, limit)


def check_pages(journal: Journal, places: list[NamedPlace], destination: str | None, limit: int) -> None:
    phases = ["open", "committed", "failed"]
    wanted = [place for place in places if destination in {None, place.destination}]
    with journal.reading() as reading:
        found, after = list[NamedPlace](), None
        while page := job_lists.by_name(reading, phases, destination=destination, after=after, limit=limit):
            after = job_lists.named_place_of(page[-1])
            found += map(job_lists.named_place_of, page)
        timed, last = list[Place](), None
        while page := job_lists.by_time(reading, phases, destination=destination, after=last, limit=limit):
            last = job_lists.place_of(page[-1])
            timed += map(job_lists.place_of, page)
    assert found == wanted
    assert sorted(timed) == sorted((1.0, place, job_id) for _, place, job_id in wanted)
