"""Behaviour of every committer: when files become visible, and what remains after the end of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.commit.committers import COMMITTERS, Committer
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
from lockgate.storage_core.commit.records.job_record import JobSpec
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.setup.job_setup import check_spec
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import AttemptId, TaskId
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import World, write

FILES = {"day=1/a.csv": b"1\n", "day=1/b.csv": b"", "deep/er/c": b"3\n"}
ODD = {"a b.csv": b"1", "ü/é.csv": b"2", "x=1/y=%2F/c.csv": b"3", "a#b?c&d.csv": b"4", "-": b"5"}
MAX_NAME_BYTES = 255
EARLY = [name for name, committer in COMMITTERS.items() if committer.visible_at != "job commit"]


@pytest.fixture(params=COMMITTERS)
def committer(request: pytest.FixtureRequest) -> Committer:
    """Return each committer."""
    return COMMITTERS[request.param]


def open_with(world: World, committer: Committer | str, name: str = "sales", **options: object) -> Job:
    chosen = committer if isinstance(committer, str) else committer.name
    return world.open_job(name, committer=chosen, allow_unsafe=True, **options)


def nothing_is_left(world: World) -> bool:
    """Return whether nothing is left except our own records."""
    beside = [path.name for path in Path(world.url).iterdir() if path.name not in {"_lockgate", "_SUCCESS"}]
    return beside == [] and world.open_uploads() == []


def test_files_are_visible_no_earlier_than_the_committer_promises_and_all_after_the_job_commit(
    world: World, committer: Committer
) -> None:
    seen = {}
    with open_with(world, committer) as job:
        attempt = job.attempt("t")
        for path, data in FILES.items():
            with attempt.open(path) as file:
                file.write(data)
        seen["close"] = world.visible()
        attempt.commit()
        seen["task commit"] = world.visible()
        assert world.live() == {}
        job.commit()
    seen["job commit"] = world.visible()
    moments = list(seen)
    first = moments.index(committer.visible_at)
    assert [seen[moment] for moment in moments] == [{}] * first + [FILES] * (len(moments) - first)
    assert world.live() == world.keys()
    assert world.open_uploads() == []


def test_an_abort_leaves_nothing_and_can_be_repeated_with_only_the_ids(
    world: World, committer: Committer
) -> None:
    job = open_with(world, committer)
    write(job, "t", FILES)
    running = job.attempt("u")
    with running.open("half.csv") as file:
        file.write(b"1")
    assert world.attach(job.job_id).abort() is JobPhase.FAILED
    assert nothing_is_left(world)
    running.abort()
    job.close()
    assert world.attach(job.job_id).abort() is JobPhase.FAILED
    assert nothing_is_left(world)


def test_an_abort_of_a_job_without_files_leaves_nothing(world: World) -> None:
    with open_with(world, "magic") as job:
        job.attempt("t").abort()
        job.abort()
    assert nothing_is_left(world)


def test_an_aborted_attempt_leaves_only_visible_files_and_its_task_can_be_retried(
    world: World, committer: Committer
) -> None:
    with open_with(world, committer) as job:
        attempt = job.attempt("t")
        for path in FILES:
            with attempt.open(path) as file:
                file.write(b"of the first try")
        seen = world.visible()
        attempt.abort()
        attempt.abort()
        assert world.visible() == seen
        assert world.open_uploads() == []
        write(job, "t", FILES)
        job.commit()
    assert world.visible() == FILES


def test_a_discarded_file_is_not_committed_and_can_be_written_again(
    world: World, committer: Committer
) -> None:
    with open_with(world, committer) as job:
        with job.attempt("t") as attempt:
            with attempt.open("a.csv") as file:
                file.write(b"first")
            attempt.drop("a.csv")
            assert attempt.files == []
            with attempt.open("a.csv") as file:
                file.write(b"second")
        job.commit()
    assert world.visible() == {"a.csv": b"second"}


@pytest.mark.parametrize(("winners", "winner"), [({"t": "try-0"}, 0), (None, 1)], ids=["listed", "newest"])
def test_the_files_of_attempts_that_lost_do_not_appear(
    world: World, committer: Committer, winners: dict[TaskId, AttemptId] | None, winner: int
) -> None:
    with open_with(world, committer) as job:
        for number in range(2):
            world.clock.sleep(1)
            with job.attempt("t", f"try-{number}") as attempt:
                for path in ("both.csv", f"only-{number}.csv"):
                    with attempt.open(path) as file:
                        file.write(b"%d" % number)
        job.commit(winners=winners)
    assert world.visible() == dict.fromkeys(("both.csv", f"only-{winner}.csv"), b"%d" % winner)
    assert world.live() == world.keys()
    assert world.open_uploads() == []


def test_the_files_of_a_task_that_did_not_commit_do_not_appear(world: World, committer: Committer) -> None:
    with open_with(world, committer) as job:
        dead = job.attempt("dead")
        for path in ("dead.csv", "day=1/a.csv"):
            with dead.open(path) as file:
                file.write(b"dead")
        write(job, "t", FILES)
        job.commit()
    assert world.visible() == FILES
    assert world.live() == world.keys()
    assert not Path(world.url, "_temporary").exists()


def test_a_task_commit_may_be_repeated(world: World, committer: Committer) -> None:
    with open_with(world, committer) as job:
        attempt = job.attempt("t")
        with attempt.open("a.csv") as file:
            file.write(b"1")
        assert attempt.commit() == attempt.commit()
        job.commit()
        assert attempt.commit().files[0].path == "a.csv"
    assert world.visible() == {"a.csv": b"1"}


def test_a_task_commit_after_the_job_s_end_is_refused_and_shows_nothing(
    world: World, committer: Committer
) -> None:
    with open_with(world, committer) as job:
        late = job.attempt("late")
        write(job, "t", FILES)
        job.commit()
    with late.open("late.csv") as file:
        file.write(b"1")
    assert world.visible() == FILES
    with pytest.raises(ConflictError, match="is decided"):
        late.commit()
    assert world.visible() == FILES
    assert world.open_uploads() == []


@pytest.mark.parametrize("same_input", [True, False])
def test_a_second_run_of_the_driver_takes_over_tasks_with_equal_input(
    world: World, committer: Committer, same_input: bool
) -> None:
    first = open_with(world, committer)
    first.expect([ExpectedTask(task_id=TaskId(t), input_digest="v1") for t in ("t", "u")])
    write(first, "t", {"t.csv": b"of the first run", "first-only.csv": b"1"})
    first.close()
    with open_with(world, committer) as second:
        digest = "v1" if same_input else "v2"
        second.expect([ExpectedTask(task_id=TaskId(t), input_digest=digest) for t in ("t", "u")])
        write(second, "u", {"u.csv": b"u"})
        if not same_input:
            write(second, "t", {"t.csv": b"of the second run"})
        second.commit()
    recovered = {"t.csv": b"of the first run", "first-only.csv": b"1"}
    assert world.visible() == {
        "u.csv": b"u",
        **(recovered if same_input else {"t.csv": b"of the second run"}),
    }
    assert world.live() == world.keys()
    assert world.open_uploads() == []


def test_unusual_names_are_read_back_unchanged(world: World, committer: Committer) -> None:
    with open_with(world, committer) as job:
        write(job, "t", ODD)
        job.commit()
    assert world.visible() == ODD
    assert world.live() == world.keys()


def test_the_longest_name_is_accepted_and_a_longer_one_refused(world: World, committer: Committer) -> None:
    longest = "n" * (MAX_NAME_BYTES - len("-0123456789"))
    with open_with(world, committer) as job:
        write(job, "t", {f"d/{longest}": b"1"})
        with pytest.raises(InvalidInputError, match="too long"):
            write(job, "u", {f"d/{longest}more": b"1"})
        job.commit()
    assert world.visible() == {f"d/{longest}": b"1"}


def test_replace_and_fail_leave_the_uncommitted_data_of_other_jobs_alone(
    world: World, committer: Committer
) -> None:
    other = open_with(world, committer, "other")
    write(other, "t", {"other.csv": b"2"})
    with open_with(world, committer, "first", mode="fail") as job:
        write(job, "t", {"first.csv": b"0"})
        job.commit()
    with open_with(world, committer, mode="replace", scope="partitions") as job:
        write(job, "t", FILES | {"root.csv": b"1"})
        job.commit()
    other.commit()
    assert world.visible() == {"other.csv": b"2", "root.csv": b"1", **FILES}
    assert world.live() == world.keys()


@pytest.mark.parametrize("name", EARLY)
def test_the_first_of_two_attempts_is_visible_until_the_job_commits_the_second(
    world: World, name: str
) -> None:
    with open_with(world, name) as job:
        for text in (b"first", b"second"):
            world.clock.sleep(1)
            write(job, "t", {"a.csv": text})
            assert world.visible() == {"a.csv": b"first"}
        job.commit()
    assert world.visible() == {"a.csv": b"second"}


@pytest.mark.parametrize("name", EARLY)
def test_a_file_that_cannot_be_published_early_is_committed_by_the_next_try(world: World, name: str) -> None:
    with open_with(world, name) as job:
        attempt = job.attempt("t")

        def run() -> None:
            with attempt.open("a.csv") as file:
                file.write(b"1")
            attempt.commit()

        FAILPOINTS.arm({"show.complete.before": "refuse"})
        try:
            with pytest.raises(StoreUnavailableError):
                run()
        finally:
            FAILPOINTS.arm({})
        attempt.commit()
        job.commit()
    assert world.visible() == {"a.csv": b"1"}


@pytest.mark.parametrize("name", EARLY)
def test_a_committer_that_publishes_early_requires_the_job_s_id_in_file_names(
    world: World, name: str
) -> None:
    with pytest.raises(InvalidInputError, match="recognised by the job's id in their names"):
        open_with(world, name, unique_filenames=False)
    assert not Path(world.url).exists()


def test_the_direct_committer_requires_allow_unsafe(world: World) -> None:
    with pytest.raises(InvalidInputError, match="allow_unsafe=True"):
        world.open_job("sales", committer="direct")
    assert not Path(world.url).exists()


@pytest.mark.parametrize("name", ["file-v1", "file-v2"])
def test_a_committer_that_renames_refuses_an_object_store(name: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="use 'magic' or 'staging'"):
        check_spec(JobSpec(committer=name), open_store("s3://lake/sales", load_settings()))
