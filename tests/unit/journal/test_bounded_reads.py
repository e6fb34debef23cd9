"""Reads whose cost does not grow with the journal: pages by key, and a status that counts no table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from lockgate.storage_core.cli.job_index import read_page
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.journal import Journal, LeaseState, Mutation
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.read import snapshot_read
from lockgate.storage_core.journal.read.snapshot_read import Reading, count_leases
from lockgate.storage_core.journal.status import overview
from lockgate.storage_core.stores import open_store
from tests.support.journal.checkpoints import job, take


def statements(journal: Journal, read: Callable[[Reading], object]) -> list[tuple[str, object]]:
    """Return the SELECT statements of a read, with their parameters."""
    seen: list[tuple[str, object]] = []

    def note(connection: object, cursor: object, statement: str, parameters: object, *_: object) -> None:
        if statement.lstrip().startswith("SELECT"):
            seen.append((statement, parameters))

    with journal.reading() as reading:
        event.listen(reading.connection, "before_cursor_execute", note)
        read(reading)
    return seen


def plan(journal: Journal, statement: str, parameters: object) -> str:
    """Return how the database executes a statement, as if its tables were large."""
    with journal.database.snapshot() as connection:
        if journal.database.is_sqlite:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # type: ignore[arg-type]
            return "\n".join(str(row[-1]) for row in rows)
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)  # type: ignore[arg-type]
        return "\n".join(str(row[0]) for row in rows)


def fill(journal: Journal, jobs: int = 5) -> None:
    journal.write([Mutation(op=job(number)) for number in range(jobs)])
    journal.write([Mutation(op=take(f"job:{number}")) for number in range(jobs)])


def test_pages_of_jobs_follow_each_other_by_key(journal: Journal) -> None:
    fill(journal)
    with journal.reading() as reading:
        everything = [found.job.job_id for found in read_page(reading).jobs]
        paged, after = [], None
        while (page := read_page(reading, after, 2)).jobs:
            paged += [found.job.job_id for found in page.jobs]
            after = page.next_after
    assert paged == everything
    assert len(everything) == 5


def test_a_page_of_jobs_is_read_by_the_primary_key_and_not_sorted(journal: Journal) -> None:
    fill(journal)
    ((statement, parameters),) = statements(
        journal, lambda reading: registry.jobs(reading, after=("s3://a", "b-g1"), limit=2)
    )
    how = plan(journal, statement, parameters)
    assert "job" in how
    if journal.database.is_sqlite:
        assert "SEARCH job USING INDEX sqlite_autoindex_job_1" in how, how
        assert "TEMP B-TREE" not in how
    else:
        assert "Index Scan using job_pkey" in how, how
        assert "ROW(destination, job_id) >" in how
        assert "Sort" not in how


def test_the_leases_of_unended_jobs_are_read_a_page_at_a_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal)
    monkeypatch.setattr(registry, "PAGE", 2)
    found: list[object] = []
    read = statements(journal, lambda reading: found.extend(registry.unended(reading)))
    assert len(found) == 5
    assert len(read) <= len(registry.UNENDED) + 3  # one for each phase, and one for the leases of each page


def test_status_and_metrics_count_no_table_and_read_a_limited_number_of_leases(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal)
    monkeypatch.setattr(snapshot_read, "COUNTED", 3)
    checkpoints = Checkpoints(open_store(str(tmp_path / "checkpoints")), journal.name)

    def read(reading: Reading) -> None:
        found = overview(reading, checkpoints)
        assert found.entries == 10
        assert sum(found.leases.values()) == 3
        assert count_leases(reading)[LeaseState.HELD] == 3

    for statement, _ in statements(journal, read):
        assert "count(" not in statement.lower()
        assert "FROM entry" not in statement
        assert "FROM lease" not in statement or "LIMIT" in statement
