"""The totals of each day follow from the jobs, whatever entries came in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from lockgate.storage_core.commit.registry.day_totals import EVERYWHERE, GREATEST, recount
from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob
from lockgate.storage_core.commit.registry.rows import Job, JobDay
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import State
from lockgate.storage_core.stamp import Stamp
from tests.support.journal.checkpoints import JournalWorld

DAY_S = 86_400.0
PLACES = ["s3://lake/a", "s3://lake/b"]


class NoRows:
    """A source without rows: all are in the state."""

    def find(self, *_: Any) -> list[Any]:
        return []

    def where(self, *_: Any, **__: Any) -> list[Any]:
        return []

    within = where


def job(number: int, phase: str, place: str = PLACES[0], **facts: Any) -> RecordJob:
    return RecordJob(
        destination=place,
        job_id=f"job{number}-g1",
        name=f"job{number}",
        short_id="abcdefghij",
        committer="magic",
        mode="append",
        phase=phase,  # type: ignore[arg-type]
        job_attempt="a1",
        **{"set_up_s": 1.0, **facts},
    )


numbers = st.none() | st.sampled_from([-5, 0, 7, GREATEST, GREATEST + 1, 2**62])
records = st.builds(
    job,
    st.integers(1, 3),
    st.sampled_from(["open", "committing", "committed", "failed"]),
    st.sampled_from(PLACES),
    set_up_s=st.sampled_from([1.0, 2.0]),
    ended_s=st.sampled_from([None, -1.0, 5.0, DAY_S, 3 * DAY_S + 1, 1e300]),
    decided_s=st.sampled_from([None, -1e300, 1.25, 2 * DAY_S]),
    rows=numbers,
    size_bytes=numbers,
)
forgotten = st.builds(
    lambda number, place: ForgetJob(destination=place, job_id=f"job{number}-g1"),
    st.integers(1, 3),
    st.sampled_from(PLACES),
)


@given(st.lists(records | forgotten, max_size=12))
def test_the_totals_are_those_of_the_jobs(ops: list[Op]) -> None:
    state = State(NoRows())
    for sequence, op in enumerate(ops, start=1):
        op.fold(state, Moment(stamp=Stamp(1, sequence), at_s=float(sequence)))
    rows = [row for row in state.changes.values() if row is not None]
    jobs = [row for row in rows if isinstance(row, Job)]
    counted = State(NoRows())
    for one in jobs:
        recount(counted, None, one)
    derived = {row.key: row for row in counted.changes.values() if isinstance(row, JobDay)}
    assert {row.key: row for row in rows if isinstance(row, JobDay)} == derived
    assert all(-(2**63) <= row.rows + row.size_bytes + row.commit_ms < 2**63 for row in derived.values())


def test_verify_names_a_total_that_no_entries_give(journals: JournalWorld) -> None:
    facts = {"ended_s": DAY_S, "decided_s": DAY_S - 2, "rows": 5, "size_bytes": 50}
    journals.apply(job(1, "committed", **facts), job(2, "committed", PLACES[1], **facts))
    assert journals.verify().findings == ()
    with journals.open() as journal:
        damage(journal)
    (finding,) = journals.verify().findings
    assert "job_day /1: rows is 11, and entries give 10" in finding


def damage(journal: Journal) -> None:
    table = table_of(JobDay)
    with journal.database.write() as connection:
        connection.execute(update(table).where(table.c.destination == EVERYWHERE).values(rows=11))


@pytest.mark.parametrize("ended_s", [None, 10.5 * DAY_S])
def test_a_commit_in_a_group_counts_once_and_a_repeated_one_does_not(
    timed_journal: Journal, ended_s: float | None
) -> None:
    for _ in range(2):
        timed_journal.apply(job(1, "committed", rows=5, ended_s=ended_s))
    timed_journal.apply(job(2, "committed", rows=6, ended_s=ended_s))
    with timed_journal.reading() as reading:
        (day,) = reading.where(JobDay, {"destination": EVERYWHERE})
    assert (day.jobs, day.rows, day.with_rows) == (2, 11, 2)
