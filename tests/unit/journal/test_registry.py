"""The registry lists locations, jobs, and the jobs that recovery considers."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob, RecordTask
from lockgate.storage_core.commit.registry.rows import Job, Phase, TaskAttempt
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Leases
from tests.support.commit.destination import ManualClock

LAKE, BARN = "s3://lake/sales", "s3://barn/sales"


def record(
    job_id: str,
    phase: Phase = "open",
    *,
    destination: str = LAKE,
    attempt: str = "run-1",
    set_up_s: float = 1.0,
) -> RecordJob:
    return RecordJob(
        destination=destination, job_id=job_id, name=job_id.rpartition("-g")[0], short_id="abcdefghij",
        committer="magic", mode="append", phase=phase, job_attempt=attempt, set_up_s=set_up_s,
    )  # fmt: skip


def record_task(task_id: str, attempt_id: str, *, rows: int | None = None, files: int = 1) -> RecordTask:
    return RecordTask(
        destination=LAKE, job_id="sales-g1", task_id=task_id, attempt_id=attempt_id, job_attempt="run-1",
        files=files, rows=rows, size_bytes=5_000_000_000,
    )  # fmt: skip


def find(timed_journal: Journal, text: str) -> Job:
    with timed_journal.reading() as reading:
        return registry.find_job(reading, text)


def test_locations_and_jobs_are_listed_in_order_for_all_destinations_or_one(timed_journal: Journal) -> None:
    for op in (record("sales-g2"), record("sales-g1"), record("costs-g1", destination=BARN)):
        timed_journal.apply(op)
    with timed_journal.reading() as reading:
        assert registry.destinations(reading) == [BARN, LAKE]
        assert [job.job_id for job in registry.jobs(reading)] == ["costs-g1", "sales-g1", "sales-g2"]
        first = registry.jobs(reading, limit=1)
        rest = registry.jobs(reading, after=first[-1].key, limit=9)
        assert [job.job_id for job in (*first, *rest)] == ["costs-g1", "sales-g1", "sales-g2"]
        assert registry.jobs(reading, after=rest[-1].key) == []


def test_a_job_is_found_by_its_id_or_by_its_name_in_the_newest_generation(timed_journal: Journal) -> None:
    for generation in (2, 10, 9):
        timed_journal.apply(record(f"sales-g{generation}"))
    assert find(timed_journal, "sales-g9").job_id == "sales-g9"
    assert find(timed_journal, "sales").job_id == "sales-g10"


@pytest.mark.parametrize("text", ["sales-g1", "sales"])
def test_an_ambiguous_job_at_two_destinations_is_refused(timed_journal: Journal, text: str) -> None:
    for destination in (LAKE, BARN):
        timed_journal.apply(record("sales-g1", destination=destination))
    with pytest.raises(ConflictError, match="name one of these destinations") as refused:
        find(timed_journal, text)
    assert LAKE in str(refused.value)
    assert BARN in str(refused.value)


def test_a_name_at_two_destinations_is_not_resolved_to_the_one_with_more_generations(
    timed_journal: Journal,
) -> None:
    for job_id, destination in (("sales-g1", LAKE), ("sales-g1", BARN), ("sales-g2", BARN)):
        timed_journal.apply(record(job_id, destination=destination))

    with pytest.raises(
        ConflictError, match=f"sales is a job at {BARN}, {LAKE}: name one of these destinations"
    ):
        find(timed_journal, "sales")

    assert find(timed_journal, "sales-g2").destination == BARN


def test_recovery_lists_every_unfinished_job_with_its_lease(timed_journal: Journal) -> None:
    phases: tuple[Phase, ...] = ("open", "committing", "aborting", "committed", "failed")
    for phase in phases:
        timed_journal.apply(record(f"{phase}-g1", phase))
    resource = job_resource(LAKE, "open-g1")
    Leases(timed_journal).take(resource, "me", purpose="take over", soft_s=30, hard_s=120)
    with timed_journal.reading() as reading:
        found = {job.job_id: lease and lease.holder for job, lease in registry.unended(reading)}
    assert found == {"open-g1": "me", "committing-g1": None, "aborting-g1": None}


def test_a_late_message_does_not_reopen_an_ended_job(timed_journal: Journal, clock: ManualClock) -> None:
    timed_journal.apply(record("sales-g1", "committed"))
    ended = find(timed_journal, "sales-g1")
    clock.sleep(60)
    timed_journal.apply(record("sales-g1", "open"))
    assert find(timed_journal, "sales-g1") == ended
    timed_journal.apply(record("sales-g1", "committed"))
    assert find(timed_journal, "sales-g1").ended_s == ended.ended_s


@pytest.mark.parametrize("phase", ["open", "committed"])
def test_a_late_message_about_an_older_job_does_not_hide_the_newer_job_of_the_same_id(
    timed_journal: Journal, clock: ManualClock, phase: Phase
) -> None:
    """The job is set up again at an emptied destination; then a driver of the older job sends a message."""
    timed_journal.apply(record("sales-g1", "committed", set_up_s=1.0))
    timed_journal.apply(record("sales-g1", attempt="run-2", set_up_s=2.0))
    newer = find(timed_journal, "sales-g1")
    assert (newer.phase, newer.ended_s) == ("open", None)

    clock.sleep(60)
    timed_journal.apply(record("sales-g1", phase, set_up_s=1.0))

    assert find(timed_journal, "sales-g1") == newer


def test_a_job_keeps_its_run_when_recorded_by_a_process_that_does_not_know_it(timed_journal: Journal) -> None:
    timed_journal.apply(record("sales-g1", attempt="run-7"))
    timed_journal.apply(record("sales-g1", "committed", attempt=""))
    assert find(timed_journal, "sales-g1").job_attempt == "run-7"


def test_a_destination_records_when_it_was_first_and_last_seen(
    timed_journal: Journal, clock: ManualClock
) -> None:
    began_s = clock.now
    timed_journal.apply(record("sales-g1"))
    clock.sleep(60)
    timed_journal.apply(record("sales-g2"))
    with timed_journal.reading() as reading:
        (place,) = reading.where(registry.Destination, {})
    assert (place.first_s, place.last_s) == (began_s, began_s + 60)


def test_a_task_commit_is_kept_as_first_recorded(timed_journal: Journal) -> None:
    timed_journal.apply(record_task("t", "1", rows=7, files=2))
    timed_journal.apply(record_task("t", "1", rows=8, files=3))
    timed_journal.apply(record_task("t", "2"))
    with timed_journal.reading() as reading:
        attempts = reading.where(TaskAttempt, {"task_id": "t"})
    assert [(attempt.attempt_id, attempt.files, attempt.rows) for attempt in attempts] == [
        ("1", 2, 7), ("2", 1, None),
    ]  # fmt: skip


def test_a_forgotten_job_is_deleted_with_its_attempts_and_no_other_job_is(timed_journal: Journal) -> None:
    for op in (record("sales-g1"), record_task("t", "1"), record_task("u", "2"), record("sales-g2")):
        timed_journal.apply(op)
    timed_journal.apply(ForgetJob(destination=LAKE, job_id="sales-g1"))
    timed_journal.apply(ForgetJob(destination=LAKE, job_id="sales-g1"))
    with timed_journal.reading() as reading:
        assert reading.where(TaskAttempt, {}) == []
        assert [job.job_id for job in registry.jobs(reading)] == ["sales-g2"]
