"""Task commits through the fsspec file system: explicit, in a transaction, by `job_filesystem`; retries."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import fsspec  # type: ignore[import-untyped]  # fsspec has no types
import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, FencedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem, job_filesystem
from tests.support.commit.destination import World
from tests.support.fsspec_paths import root_of, write_half


@pytest.fixture
def fs(world: World) -> LockgateFileSystem:
    return LockgateFileSystem(settings=world.settings)


def test_a_second_task_commit_returns_the_same_and_accepts_no_more_files(
    world: World, fs: LockgateFileSystem
) -> None:
    with world.open_job("day") as job:
        fs.pipe(f"{root_of(job)}/a.csv", b"one")
        assert fs.commit_task(root_of(job)) == fs.commit_task(root_of(job))
        with pytest.raises(ConflictError, match="takes no more files"):
            fs.open(f"{root_of(job)}/b.csv", "wb")
        fs.abort_task(root_of(job))
        job.commit()
    assert world.visible() == {"a.csv": b"one"}


def test_a_task_without_data_commits_if_that_is_allowed(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        with pytest.raises(ConflictError, match="commits with allow_empty=True"):
            fs.commit_task(root_of(job))
        assert fs.commit_task(root_of(job), allow_empty=True).files == ()
        assert fs.commit_task(root_of(job)).files == ()
        job.commit()
    assert world.visible() == {}


def test_a_second_try_in_one_thread_does_not_commit_files_of_the_first(world: World) -> None:
    def run_task(name: str, *, fails: bool) -> None:
        fs = LockgateFileSystem(settings=world.settings)
        fs.pipe(f"{root_of(job)}/{name}.csv", name.encode())
        if fails:
            raise RuntimeError("boom")
        fs.commit_task(root_of(job))

    with world.open_job("day") as job:
        with pytest.raises(RuntimeError, match="boom"):
            run_task("first", fails=True)
        run_task("second", fails=False)
        job.commit()
    assert world.visible() == {"second.csv": b"second"}
    assert world.open_uploads() == []


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_instance_is_not_duplicated_during_a_task(
    world: World, fs: LockgateFileSystem, duplicate: Callable[[LockgateFileSystem], object]
) -> None:
    with world.open_job("day") as job:
        duplicate(fs)
        fs.pipe(f"{root_of(job)}/a.csv", b"one")
        with pytest.raises(ConflictError, match="what a copy writes would not belong to this task's commit"):
            duplicate(fs)
        fs.commit_task(root_of(job))
        duplicate(fs)
        job.commit()
    assert world.visible() == {"a.csv": b"one"}


def test_no_empty_task_is_committed_if_another_instance_wrote_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(world.root / "home"))
    fsspec.register_implementation("lockgate", LockgateFileSystem, clobber=True)
    with world.open_job("day") as job:
        with (
            pytest.raises(ConflictError, match="every URL that a library opens by itself, is another"),
            job_filesystem(job, "part-0") as (fs, root),
        ):
            fsspec.open(fs.unstrip_protocol(f"{root}/a.csv"), "wb").open().close()
        assert list(job.pending_sets()) == []
        job.commit()
    assert world.visible() == {}


def test_a_task_can_be_written_again_after_an_abort(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        late = fs.open(f"{root_of(job)}/late.csv", "wb")
        late.write(b"late")
        fs.pipe(f"{root_of(job)}/a.csv", b"one")
        fs.abort_task(root_of(job))
        fs.abort_task(root_of(job))
        assert world.open_uploads() == []
        fs.pipe(f"{root_of(job)}/a.csv", b"two")
        late.close()
        assert len(fs.find(root_of(job))) == 1
        fs.commit_task(root_of(job))
        job.commit()
    assert world.visible() == {"a.csv": b"two"}


def test_a_task_whose_driver_was_replaced_does_not_commit(world: World, fs: LockgateFileSystem) -> None:
    first = world.open_job("day")
    fs.pipe(f"{root_of(first)}/a.csv", b"one")
    with world.open_job("day") as second:
        with pytest.raises(FencedError):
            fs.commit_task(root_of(first))
        assert not fs.exists(f"{root_of(first)}/a.csv")
        second.commit()
    first.close()
    assert world.visible() == {}
    assert world.open_uploads() == []


def test_a_transaction_commits_every_task_that_it_wrote(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        with fs.transaction:
            for task in ("part-0", "part-1"):
                for name in ("x", "y"):
                    fs.pipe(f"{root_of(job, task)}/{task}-{name}.csv", b"one")
            assert list(job.pending_sets()) == []
        assert {found.task_id for found in job.pending_sets()} == {"part-0", "part-1"}
        job.commit()
    assert len(world.visible()) == 4


def test_a_transaction_that_raised_aborts_its_tasks_and_the_next_one_starts_over(
    world: World, fs: LockgateFileSystem
) -> None:
    with world.open_job("day") as job:
        with pytest.raises(RuntimeError, match="boom"), fs.transaction:
            write_half(fs.open(f"{root_of(job)}/a.csv", "wb"))
        assert world.open_uploads() == []
        with fs.transaction:
            fs.pipe(f"{root_of(job)}/a.csv", b"whole")
        job.commit()
    assert world.visible() == {"a.csv": b"whole"}


def test_an_aborted_attempt_does_not_commit_its_discarded_files(world: World) -> None:
    with world.open_job("day") as job:
        attempt = job.attempt("part-0")
        with attempt.open("a.csv") as file:
            file.write(b"one")
        attempt.abort()
        with pytest.raises(ConflictError, match="was aborted; begin another"):
            attempt.commit()
        assert list(job.pending_sets()) == []


def by_transaction(fs: LockgateFileSystem, root: str) -> None:
    with fs.transaction:
        fs.pipe(f"{root}/a.csv", b"one")


def by_hand(fs: LockgateFileSystem, root: str) -> None:
    fs.pipe(f"{root}/a.csv", b"one")
    fs.commit_task(root)


@pytest.mark.parametrize("commit", [by_transaction, by_hand])
def test_a_task_commit_without_an_answer_discards_nothing_and_a_second_one_settles_it(
    world: World, fs: LockgateFileSystem, commit: Callable[[LockgateFileSystem, str], None]
) -> None:
    lost = False

    def lose(point: str) -> None:
        nonlocal lost
        lost = lost or point == "task-commit.create.after"
        if lost:
            raise OutcomeUnknownError("no answer")

    with world.open_job("day") as job:
        FAILPOINTS.observer = lose
        try:
            with pytest.raises(OutcomeUnknownError):
                commit(fs, root_of(job))
        finally:
            FAILPOINTS.observer = None
        fs.abort_task(root_of(job))
        with pytest.raises(ConflictError, match="if the outcome is unknown, call commit_task again"):
            fs.open(f"{root_of(job)}/b.csv", "wb")
        assert len(fs.commit_task(root_of(job)).files) == 1
        job.commit()
    assert world.visible() == {"a.csv": b"one"}


def test_job_filesystem_commits_the_task_at_its_end(world: World) -> None:
    with world.open_job("day") as job:
        with job_filesystem(job, "part-0") as (fs, root):
            fs.pipe(f"{root}/day=1/a.csv", b"one")
        with job_filesystem(job, "empty", allow_empty=True):
            pass
        assert {found.task_id: len(found.files) for found in job.pending_sets()} == {"part-0": 1, "empty": 0}
        job.commit()
    assert world.visible() == {"day=1/a.csv": b"one"}


def test_job_filesystem_discards_all_files_when_its_block_raises(world: World) -> None:
    with world.open_job("day") as job:
        with pytest.raises(RuntimeError, match="boom"), job_filesystem(job, "part-0") as (fs, root):
            write_half(fs.open(f"{root}/a.csv", "wb"))
        assert world.open_uploads() == []
        assert job.phase() is JobPhase.OPEN
        job.commit()
    assert world.visible() == {}


def test_job_filesystem_refuses_a_job_that_has_ended(world: World) -> None:
    job = world.run("day", {"a.csv": b"one"})
    with pytest.raises(ConflictError, match="takes no more data"), job_filesystem(job, "part-0"):
        pytest.fail("the block must not begin")
