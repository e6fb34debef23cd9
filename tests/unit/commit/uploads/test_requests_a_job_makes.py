"""S3 requests of a `magic` job per file, per task and per job, counted by the strict fake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from lockgate.storage_core.settings import MIB
from tests.support.commit.destination import write
from tests.support.fake_s3 import Seen
from tests.support.s3.destination import S3World, s3_world

A_FILE: Final = {"CreateMultipartUpload": 1, "UploadPart": 1, "CompleteMultipartUpload": 1}
A_TASK: Final = {"PutObject": 1, "GetObject": 4, "ListObjectsV2": 1}
"""The only PUT is the pending set. The task makes three of the reads, the job commit one. The task lists its
records: whether another process has rejected the attempt, and how many attempts committed before."""
A_JOB: Final = 36
"""Upper limit of the requests that do not depend on the size of a job; one asks whether there are tables."""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    """Return a destination that was probed and has one published job."""
    with s3_world(tmp_path, monkeypatch) as world:
        world.driver.run("first", {"first.csv": b"1"})
        yield world


def requests_of_a_job(s3: S3World, files: int, tasks: int) -> list[Seen]:
    """Run a job with this many files and tasks; return its requests and restore the destination."""

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


def test_a_file_costs_its_upload_and_a_task_one_put_and_a_job_a_constant(s3: S3World) -> None:
    constants = []
    for files, tasks in [(1, 1), (3, 1), (40, 1), (40, 4), (90, 9)]:
        counted = Counter(seen.operation for seen in requests_of_a_job(s3, files, tasks))
        print(f"\n{files} files in {tasks} tasks: {dict(sorted(counted.items()))}")
        for operation, number in A_FILE.items():
            assert counted[operation] == number * files
        counted.subtract(times(files, A_FILE) + times(tasks, A_TASK))
        constants.append(+counted)
    print(f"a job besides: {dict(sorted(constants[0].items()))}")
    assert all(constant == constants[0] for constant in constants)
    assert constants[0].total() <= A_JOB


def test_no_file_is_checked_or_listed(s3: S3World) -> None:
    seen = requests_of_a_job(s3, 40, 4)

    assert [one.key for one in seen if one.operation == "HeadObject"] == ["sales/_SUCCESS"]
    touched = Counter(one.operation for one in seen if one.key.endswith(".csv"))
    assert touched == times(40, A_FILE)
    assert listings(seen) - listings(requests_of_a_job(s3, 1, 1)) == 3 * A_TASK["ListObjectsV2"]


def listings(seen: list[Seen]) -> int:
    return sum(one.operation.startswith("List") for one in seen)


def test_a_large_file_costs_one_more_request_per_part(s3: S3World) -> None:
    s3.driver.options = {**s3.driver.options, "part_bytes": 5 * MIB}
    with s3.driver.open_job("job") as job:
        seen = s3.seen_in(lambda: write(job, "task", {"a.csv": b"x" * (11 * MIB)}))

    counted = Counter(one.operation for one in seen if one.key.endswith(".csv"))
    assert counted == {"CreateMultipartUpload": 1, "UploadPart": 3}
