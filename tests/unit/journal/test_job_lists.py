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
from lockgate.storage_core.journal import Journal, Mutation, Reading

LAKE = "s3://lake/sales"
PHASES = ["open", "committed"]

READS: dict[str, Callable[[Reading], Any]] = {
    "newest": lambda reading: job_lists.by_time(reading, PHASES, limit=2),
    "deep": lambda reading: job_lists.by_time(reading, PHASES, after=Place(50.0, LAKE, "a"), limit=2),
    "oldest": lambda reading: job_lists.by_time(reading, PHASES, newest_first=False, limit=2),
    "destination": lambda reading: job_lists.by_time(reading, PHASES, destination=LAKE, limit=2),
    "attention": lambda reading: job_lists.by_time(reading, [], attention=True, limit=2),
    "name": lambda reading: job_lists.by_name(reading, "job-0", limit=2),
    "deep name": lambda reading: job_lists.by_name(
        reading, "job", after=NamedPlace("job-050", LAKE, "z"), limit=2
    ),
    "one name": lambda reading: job_lists.named_exactly(reading, "job-007"),
    "run": lambda reading: job_lists.of_task(reading, Task("dag", "run-7"), limit=2),
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
