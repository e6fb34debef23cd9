"""What a job of the `magic` committer costs on S3, as the strict fake counts: per file, per task, per job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from lockgate.storage_core.settings import MIB
from tests.commit_world import write
from tests.fake_s3 import Options, Seen
from tests.s3_world import S3World, s3_world

A_FILE: Final = {"CreateMultipartUpload": 1, "UploadPart": 1, "CompleteMultipartUpload": 1}
A_TASK: Final = {"PutObject": 1, "GetObject": 6}
"""The one PUT is the pending set; of the reads, four are made by the task and two by the job's commit."""
READS_BY_THE_TASK: Final = {
    "COMMIT_STARTED": 2,  # it begins, and commits, only while the job is undecided
    "attempts": 1,  # the frozen task list, for the digest of the task's input
    "aborted": 1,  # whether another process has ruled the attempt out
}
READS_BY_THE_JOB: Final = 2
"""Of each pending set: chosen, then frozen into the plan, so that one is in memory at a time."""
A_JOB: Final = 64
"""Requests of a job whatever its size, at most: more than that deserve a thought."""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    """A destination that was probed, and has one published job."""
    with s3_world(tmp_path, monkeypatch) as world:
        world.driver.run("first", {"first.csv": b"1"})
        yield world


def seen_of_a_job(s3: S3World, files: int, tasks: int) -> list[Seen]:
    """Run a job of so many files, dealt out to so many tasks; the destination is then as it was."""

    def run() -> None:
        with s3.driver.open_job("job") as job:
            for task in range(tasks):
                write(job, f"task-{task}", {f"{n}.csv": b"x" for n in range(task, files, tasks)})
            job.commit()

    before = s3.fake.snapshot()
    seen = s3.seen_in(run)
    s3.fake.restore(before)
    return seen


def times(count: int, each: Mapping[str, int]) -> Counter[str]:
    return Counter({operation: count * number for operation, number in each.items()})


def test_a_file_costs_its_upload_a_task_one_put_and_the_job_a_constant(s3: S3World) -> None:
    constants = []
    for files, tasks in [(1, 1), (3, 1), (40, 1), (40, 4), (90, 9)]:
        counted = Counter(seen.operation for seen in seen_of_a_job(s3, files, tasks))
        print(f"\n{files} files in {tasks} tasks: {dict(sorted(counted.items()))}")
        for operation, number in A_FILE.items():
            assert counted[operation] == number * files
        counted.subtract(times(files, A_FILE) + times(tasks, A_TASK))
        constants.append(+counted)
    print(f"a job besides: {dict(sorted(constants[0].items()))}")
    assert all(constant == constants[0] for constant in constants)
    assert constants[0].total() <= A_JOB


def test_no_file_is_asked_after_or_listed(s3: S3World) -> None:
    seen = seen_of_a_job(s3, 40, 4)

    assert [one.key for one in seen if one.operation == "HeadObject"] == ["sales/_SUCCESS"]
    touched = Counter(one.operation for one in seen if one.key.endswith(".csv"))
    assert touched == times(40, A_FILE)
    listings = sum(one.operation.startswith("List") for one in seen)
    assert listings == sum(one.operation.startswith("List") for one in seen_of_a_job(s3, 1, 1))


def test_a_task_reads_four_small_records_and_its_pending_set_is_read_twice(s3: S3World) -> None:
    with s3.driver.open_job("job") as job:
        by_the_task = s3.seen_in(lambda: write(job, "task", {"a.csv": b"a", "b.csv": b"b"}))
        by_the_job = s3.seen_in(job.commit)

    read = Counter(what_is_read(one.key) for one in by_the_task if one.operation == "GetObject")
    assert read == READS_BY_THE_TASK
    written = [one.key for one in by_the_task if one.operation == "PutObject"]
    assert [what_is_read(key) for key in written] == ["pendingset"]
    reads = [one for one in by_the_job if one.operation == "GetObject" and one.key in written]
    assert len(reads) == READS_BY_THE_JOB
    assert READS_BY_THE_JOB + sum(READS_BY_THE_TASK.values()) == A_TASK["GetObject"]


def what_is_read(key: str) -> str:
    """Name a record of a job by the folder, the ending or the name that says what it is."""
    folder, _, name = key.rpartition("/")
    return "attempts" if folder.endswith("/attempts") else name.rpartition(".")[2]


def test_a_large_file_costs_a_request_a_part_more(s3: S3World) -> None:
    s3.driver.options = {**s3.driver.options, "part_bytes": 5 * MIB}
    with s3.driver.open_job("job") as job:
        seen = s3.seen_in(lambda: write(job, "task", {"a.csv": b"x" * (11 * MIB)}))

    counted = Counter(one.operation for one in seen if one.key.endswith(".csv"))
    assert counted == {"CreateMultipartUpload": 1, "UploadPart": 3}


def test_listings_grow_by_pages_and_by_nothing_else(s3: S3World) -> None:
    whole = Counter(seen.operation for seen in seen_of_a_job(s3, 40, 1))
    s3.fake.behave(Options(page_size=10))
    paged = Counter(seen.operation for seen in seen_of_a_job(s3, 40, 1))

    # A page may end amid a key, and the next goes on behind the last whole one: nine new ones a page.
    assert paged["ListMultipartUploads"] - whole["ListMultipartUploads"] == 4
    less = {name: count for name, count in whole.items() if not name.startswith("List")}
    # What is cleaned up goes page by page too.
    assert {**less, "DeleteObjects": paged["DeleteObjects"]} == {
        name: count for name, count in paged.items() if not name.startswith("List")
    }
