"""The life cycle of an undisturbed job, and repeated calls."""

from __future__ import annotations

import json

import pytest

from lockgate.storage_core.commit.records.layout import SUCCESS
from lockgate.storage_core.commit.records.phase import NEXT, TERMINAL, JobPhase, advance
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from tests.support.commit.destination import World, plain, write

FILES = {"day=1/a.csv": b"1\n", "b %2F é =.csv": b"2\n" * 3, "deep/er/c": b""}


def test_every_phase_has_a_row_and_leads_only_to_phases() -> None:
    assert set(NEXT) == set(JobPhase)
    assert set().union(*NEXT.values()) <= set(JobPhase)
    assert {JobPhase.COMMITTED, JobPhase.FAILED} == TERMINAL
    with pytest.raises(ConflictError, match="nothing was changed"):
        advance(JobPhase.COMMITTED, JobPhase.FAILED)


def test_nothing_is_visible_before_the_commit_and_everything_after_it(world: World) -> None:
    with world.open_job("sales") as job:
        write(job, "all", FILES)
        assert world.visible() == {}
        assert world.live() == {}
        assert len(world.open_uploads()) == len(FILES)
        receipt = job.commit()
    assert world.visible() == FILES
    assert world.live() == world.keys()
    assert world.open_uploads() == []
    assert (receipt.files, receipt.size, receipt.turn) == (3, sum(map(len, FILES.values())), 1)


def test_second_commit_of_a_committed_job_changes_nothing_and_returns_the_same_receipt(world: World) -> None:
    job = world.run("sales", FILES)
    before = {info.key: info.version for page in world.store.pages() for info in page}
    again = world.attach(job.job_id).commit()
    assert again == job.receipt
    assert {info.key: info.version for page in world.store.pages() for info in page} == before


def test_an_empty_job_and_an_empty_task_commit(world: World) -> None:
    assert world.run("nothing", {}).receipt is not None
    with world.open_job("empty-task") as job:
        job.attempt("t").commit()
        assert job.commit().files == 0
    assert world.visible() == {}
    assert json.loads(world.store.get(SUCCESS))["job_id"] == "empty-task-g1"


def test_an_attempt_aborted_by_its_ids_is_never_selected(world: World) -> None:
    with world.open_job("sales") as job:
        attempt = job.attempt("t")
        with attempt.open("a.csv") as file:
            file.write(b"zombie")
        attempt.commit()
        world.attach(job.job_id).abort_attempt("t", attempt.attempt_id)
        write(job, "u", {"b.csv": b"1"})
        job.commit()
    assert world.visible() == {"b.csv": b"1"}
    assert world.open_uploads() == []


def test_a_missing_expected_task_fails_the_job_before_anything_is_visible(world: World) -> None:
    from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask

    job = world.open_job("sales")
    job.expect([ExpectedTask(task_id="t"), ExpectedTask(task_id="u")])  # type: ignore[arg-type]
    write(job, "t", {"a.csv": b"1"})
    with pytest.raises(ConflictError, match=r"1 of 2 tasks have not committed \(u\)"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == {}
    assert world.open_uploads() == []


def test_tasks_that_name_their_input_count_only_if_the_driver_selects_an_input(world: World) -> None:
    job = world.open_job("sales")
    with job.attempt("t", input_digest="a-try-of-spark") as attempt, attempt.open("half.csv") as file:
        file.write(b"1")
    with pytest.raises(ConflictError, match="which attempts of its tasks count"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_an_abort_after_the_decision_changes_nothing(world: World) -> None:
    job = world.run("sales", FILES)
    assert world.attach(job.job_id).abort() is JobPhase.COMMITTED
    assert world.visible() == FILES


def test_an_exception_in_the_driver_aborts_the_job(world: World) -> None:
    def run() -> None:
        with world.open_job("sales") as job:
            write(job, "t", FILES)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    job = world.attach("sales-g1")
    assert job.phase() is JobPhase.FAILED
    assert (world.visible(), world.open_uploads()) == ({}, [])


def test_an_exception_in_a_task_aborts_its_uploads_and_nothing_else(world: World) -> None:
    with world.open_job("sales") as job:

        def run() -> None:
            with job.attempt("t") as attempt, attempt.open("a.csv") as file:
                file.write(b"1")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run()
        assert world.open_uploads() == []
        write(job, "t", {"a.csv": b"2"})
        job.commit()
    assert world.visible() == {"a.csv": b"2"}


def test_a_file_abandoned_half_written_is_not_sealed(world: World) -> None:
    with world.open_job("sales") as job:
        attempt = job.attempt("t")
        writer = attempt.open_upload("a.csv")
        writer.write(b"half")
        writer.abort()
        del writer
        attempt.commit()
        assert job.commit().files == 0


def test_a_recomputation_replaces_the_previous_generation(world: World) -> None:
    world.run("other", {"z.csv": b"z"})
    world.run("sales", {"a.csv": b"1", "b.csv": b"1"})
    second = world.run("sales", {"a.csv": b"2"})
    assert second.job_id == "sales-g2"
    assert world.visible() == {"z.csv": b"z", "a.csv": b"2"}
    assert world.live() == world.keys()


def test_with_rerun_once_a_committed_run_is_reused_and_publishes_nothing_more(world: World) -> None:
    receipt = world.run("batch-7", {"a.csv": b"1"}, rerun="once").receipt
    with world.open_job("batch-7", rerun="once") as again:
        assert again.receipt == receipt
        with pytest.raises(ConflictError, match="takes no more data"):
            again.attempt("task-0")
        assert again.commit() == receipt
    assert world.visible() == {"a.csv": b"1"}
    assert world.manifest().turn == 1


def test_with_rerun_once_a_failed_run_can_be_retried(world: World) -> None:
    with world.open_job("batch-7", rerun="once") as job:
        job.abort()
    world.run("batch-7", {"a.csv": b"1"}, rerun="once")
    assert world.visible() == {"a.csv": b"1"}


def test_a_recomputation_with_rerun_append_keeps_the_earlier_files(world: World) -> None:
    world.run("sales", {"a.csv": b"1"}, rerun="append")
    world.run("sales", {"b.csv": b"2"}, rerun="append")
    assert world.visible() == {"a.csv": b"1", "b.csv": b"2"}


def test_a_retry_resumes_its_undecided_job_without_the_tasks_of_the_first_run(world: World) -> None:
    first = world.open_job("sales")
    write(first, "t", {"a.csv": b"1", "only-in-the-first-plan.csv": b"1"})
    first.close()
    with world.open_job("sales") as second:
        assert second.job_id == first.job_id
        assert second.job_attempt != first.job_attempt
        write(second, "t", {"a.csv": b"2"})
        second.commit()
    assert world.visible() == {"a.csv": b"2"}
    assert world.open_uploads() == []


def test_a_retry_with_different_options_is_refused_with_both_values(world: World) -> None:
    world.open_job("sales", mode="append").close()
    with pytest.raises(ConflictError, match="mode: 'append', now 'replace'"):
        world.open_job("sales", mode="replace")


def test_two_names_that_look_alike_are_two_jobs(world: World) -> None:
    assert world.open_job("a/b").job_id != world.open_job("a:b").job_id


@pytest.mark.parametrize("name", ["", "  "])
def test_a_job_without_a_name_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidInputError, match="name that is stable"):
        world.open_job(name)


def test_the_staging_committer_provides_real_files_and_commits_the_same_data(world: World) -> None:
    with world.open_job("sales", committer="staging") as job:
        with job.attempt("t") as attempt:
            with attempt.open("day=1/a.csv") as file:
                file.write(b"12345")
                file.seek(0)
                file.write(b"9")
            assert world.open_uploads() == []
        assert [plain(key) for key in world.open_uploads()] == ["day=1/a.csv"]
        job.commit()
    assert world.visible() == {"day=1/a.csv": b"92345"}
    assert [path for path in (world.root / "home" / "staging").rglob("*") if path.is_file()] == []


def test_a_large_file_is_uploaded_in_parts_and_read_back_whole(world: World) -> None:
    data = bytes(range(256)) * 50_000  # 12.8 MB, that is three parts
    with world.open_job("sales") as job:
        with job.attempt("t") as attempt, attempt.open("a.bin") as file:
            for start in range(0, len(data), 70_001):
                file.write(data[start : start + 70_001])
        (pending,) = next(job.pending_sets()).files
        assert [part.size for part in pending.upload.parts] == [5 << 20, 5 << 20, len(data) - (10 << 20)]
        job.commit()
    assert world.visible() == {"a.bin": data}
