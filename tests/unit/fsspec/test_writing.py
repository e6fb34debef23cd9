"""Writing through the fsspec file system: files of an attempt are pending until its task commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    LockgateError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem
from tests.support.commit.destination import World
from tests.support.fsspec_paths import root_of, write_half


@pytest.fixture
def fs(world: World) -> LockgateFileSystem:
    return LockgateFileSystem(settings=world.settings)


def test_a_file_is_visible_after_the_job_commit_and_not_before(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        fs.pipe(f"{root_of(job)}/day=1/a.csv", b"one")
        assert (world.visible(), world.live(), len(world.open_uploads())) == ({}, {}, 1)
        fs.commit_task(root_of(job))
        assert (world.visible(), world.live(), len(world.open_uploads())) == ({}, {}, 1)
        job.commit()
    assert world.visible() == {"day=1/a.csv": b"one"}
    assert world.open_uploads() == []


def test_two_instances_are_two_attempts_of_a_task(world: World, fs: LockgateFileSystem) -> None:
    other = LockgateFileSystem(settings=world.settings)
    with world.open_job("day") as job:
        for one, data in ((fs, b"first"), (other, b"second")):
            one.pipe(f"{root_of(job)}/a.csv", data)
            one.commit_task(root_of(job))
        attempts = {found.attempt_id: found for found in job.pending_sets("part-0")}
        assert len(attempts) == 2
        job.commit()
    assert world.visible() == {"a.csv": b"second"}


def test_files_just_written_are_listed_without_a_request(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        root = root_of(job)
        fs.pipe(f"{root}/day=1/a.csv", b"one")
        calls: list[str] = []
        FAILPOINTS.observer = calls.append
        try:
            path = fs._strip_protocol(f"{root}/day=1/a.csv")
            assert fs.info(path) == {"name": path, "size": 3, "type": "file", "pending": True}
            assert fs.exists(path)
            assert fs.isfile(path)
            assert fs.isdir(f"{root}/day=1")
            assert fs.find(root) == [path]
            assert fs.ls(f"{root}/day=1", detail=False) == [path]
            assert fs.glob(f"{root}/*/*.csv") == [path]
            assert not fs.exists(f"{root}/day=1/b.csv")
            assert not fs.exists(f"{root}/day=2")
            with pytest.raises(FileNotFoundError, match="not written by this file system instance"):
                fs.ls(f"{root}/day=2")
        finally:
            FAILPOINTS.observer = None
    assert calls == []


def test_the_directory_of_a_job_lists_the_tasks_that_the_instance_writes(
    world: World, fs: LockgateFileSystem
) -> None:
    with world.open_job("day") as job:
        for task in ("part-0", "part-1"):
            fs.pipe(f"{root_of(job, task)}/{task}.csv", b"one")
        folder = root_of(job).split("/part-0")[0]
        assert [Path(found).name for found in fs.ls(folder, detail=False)] == ["part-0", "part-1"]


def test_directories_are_remembered_and_cost_no_request(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        root = root_of(job)
        fs.makedirs(f"{root}/day=1/hour=2", exist_ok=True)
        fs.mkdir(root)
        assert fs.isdir(f"{root}/day=1")
        assert fs.ls(root, detail=False) == [fs._strip_protocol(f"{root}/day=1")]
        fs.rmdir(f"{root}/day=1/hour=2")
        assert not fs.exists(f"{root}/day=1/hour=2")
        with pytest.raises(ConflictError, match="wrote nothing of the task"):
            fs.commit_task(root)
    assert world.visible() == {}


def test_many_threads_write_one_attempt(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: fs.pipe(f"{root_of(job)}/{n}.csv", b"%d" % n), range(24)))
        assert len(fs.commit_task(root_of(job)).files) == 24
        job.commit()
    assert world.visible() == {f"{n}.csv": b"%d" % n for n in range(24)}


@pytest.mark.parametrize("mode", ["ab", "a", "r+b", "w+b"])
def test_a_file_is_not_appended_to_or_changed(world: World, fs: LockgateFileSystem, mode: str) -> None:
    with (
        world.open_job("day") as job,
        pytest.raises(InvalidInputError, match="nothing was opened; a file is written once, from its start"),
    ):
        fs.open(f"{root_of(job)}/a.csv", mode)


def test_a_file_is_written_once(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        path = f"{root_of(job)}/a.csv"
        fs.pipe(path, b"one")
        with pytest.raises(InvalidInputError, match="was written already"):
            fs.open(path, "wb")
        with pytest.raises(FileExistsError):
            fs.open(path, "xb")
        fs.commit_task(path)
        job.commit()
    assert world.visible() == {"a.csv": b"one"}


def test_a_pending_file_cannot_be_read_before_the_job_commits(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        fs.pipe(f"{root_of(job)}/a.csv", b"one")
        with pytest.raises(InvalidInputError, match="commit its job, and read it at the destination"):
            fs.cat(f"{root_of(job)}/a.csv")
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root_of(job)}/b.csv", "rb")


@pytest.mark.parametrize("committer", ["magic", "file-v2"])
def test_a_removed_file_is_not_committed_and_may_be_written_again(
    world: World, fs: LockgateFileSystem, committer: str
) -> None:
    with world.open_job("day", committer=committer) as job:
        root = fs.begin_task(job, "part-0")
        for name in ("a.csv", "b.csv", "day=1/c.csv"):
            fs.pipe(f"{root}/{name}", b"half")
        fs.rm([f"{root}/a.csv", f"{root}/b.csv"])
        fs.rm(f"{root}/day=1", recursive=True)
        assert fs.find(root) == []
        fs.pipe(f"{root}/a.csv", b"whole")
        fs.commit_task(root)
        with pytest.raises(ConflictError, match="has begun to commit"):
            fs.rm(f"{root}/a.csv")
        job.commit()
    assert world.visible() == {"a.csv": b"whole"}
    assert world.open_uploads() == []


def test_a_directory_that_holds_files_is_not_removed(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job:
        fs.pipe(f"{root_of(job)}/day=1/a.csv", b"one")
        with pytest.raises(InvalidInputError, match="the directory is not empty"):
            fs.rmdir(f"{root_of(job)}/day=1")
        with pytest.raises(FileNotFoundError):
            fs.rm(f"{root_of(job)}/day=2")


@pytest.mark.parametrize("committer", ["magic", "file-v2"])
def test_a_file_whose_block_raised_is_discarded_even_if_the_task_continues(
    world: World, fs: LockgateFileSystem, committer: str
) -> None:
    with world.open_job("day", committer=committer) as job:
        root = fs.begin_task(job, "part-0")
        with pytest.raises(RuntimeError, match="boom"), fs.open(f"{root}/a.csv", "wb") as file:
            write_half(file)
        assert not fs.exists(f"{root}/a.csv")
        fs.pipe(f"{root}/b.csv", b"whole")
        fs.commit_task(root)
        job.commit()
    assert world.visible() == {"b.csv": b"whole"}


def test_a_published_file_is_copied_into_a_task(world: World, fs: LockgateFileSystem) -> None:
    world.run("old", {"a.csv": b"one"})
    with world.open_job("day") as job:
        (old,) = fs.find(world.url)
        fs.copy(old, f"{root_of(job)}/b.csv")
        fs.commit_task(root_of(job))
        job.commit()
    assert world.visible() == {"a.csv": b"one", "b.csv": b"one"}


@pytest.mark.parametrize("call", ["open", "mkdir", "rm", "rmdir", "commit_task", "abort_task"])
def test_a_destination_is_read_only_outside_a_magic_directory(
    world: World, fs: LockgateFileSystem, call: str
) -> None:
    world.run("old", {"a.csv": b"one"})
    (path,) = fs.find(world.url)
    arguments = (path, "wb") if call == "open" else (path,)
    with pytest.raises(
        InvalidInputError, match=r"write below <destination>/__magic_job-<job id>/<task>/__base/"
    ):
        getattr(fs, call)(*arguments)
    assert world.visible() == {"a.csv": b"one"}


def test_no_file_can_be_written_to_a_path_without_a_task(world: World, fs: LockgateFileSystem) -> None:
    with world.open_job("day") as job, pytest.raises(InvalidInputError, match="names a job, not a task"):
        fs.open(root_of(job).split("/part-0")[0], "wb")


def test_the_error_for_a_missing_job_names_it(world: World, fs: LockgateFileSystem) -> None:
    with pytest.raises(ObjectNotFoundError, match="none-g1"):
        fs.open(f"{world.url}/__magic_job-none-g1/part-0/__base/a.csv", "wb")


@pytest.mark.parametrize("name", ["_a.csv", ".a.csv", "_temporary/a.csv"])
def test_a_hidden_name_is_refused(world: World, fs: LockgateFileSystem, name: str) -> None:
    with world.open_job("day") as job, pytest.raises(InvalidInputError, match="hidden from readers"):
        fs.open(f"{root_of(job)}/{name}", "wb")


def test_every_refusal_raises_an_error_of_lockgate_or_of_the_operating_system(
    world: World, fs: LockgateFileSystem
) -> None:
    for path in (
        "/a\0b",
        "/x?/__magic_job-a-g1/t/a",
        "s3/_/__magic_job-a-g1/t/a",
        "/\udcff/__magic_job-a-g1/t/a",
    ):
        with pytest.raises((LockgateError, OSError)):
            fs.open(path, "wb")
        assert isinstance(fs.exists("/nowhere/at/all"), bool)
