"""Pending sets as records: round trip, and bounded memory for any number of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from lockgate.storage_core.commit.decide.task_selection import choose
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics, PendingFile, PendingSet
from lockgate.storage_core.ids import AttemptId, TaskId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Part, PendingUpload
from tests.support.commit.destination import World, write

MIB = 1024 * 1024


def pending_set(world: World, task: str, *, files: int) -> PendingSet:
    job = world.attach("sales-g1")
    return PendingSet(
        job_id=job.job_id,
        job_attempt=job.job_attempt,
        task_id=TaskId(task),
        attempt_id=AttemptId("a1"),
        stamp=Stamp(1, 7),
        input_digest="",
        created_s=1.5,
        files=tuple(
            PendingFile(
                path=f"day=ü/{task}-{number}.csv",
                rows=number,
                statistics={"x": ColumnStatistics(nulls=0, minimum="é" * 50, maximum=None)},
                upload=PendingUpload(
                    key=f"day=ü/{task}-{number}-{job.short_id}.csv",
                    upload_id="u" * 64,
                    token=Token("t" * 32),
                    size=3,
                    parts=(Part(number=1, size=3, etag='"e"', checksum="AAAA"),),
                    seal="s",
                ),
            )
            for number in range(files)
        ),
    )


@pytest.mark.parametrize("committer", ["magic", "staging", "partitioned", "file-v1"])
def test_a_task_commit_returns_the_stored_pending_set(world: World, committer: str) -> None:
    with world.open_job("sales", committer=committer) as job:
        attempt = job.attempt("t")
        with attempt.open("day=1/a.csv") as file:
            file.write(b"123")
        assert attempt.commit() == next(job.pending_sets())
        write(job, "u", {})
        assert [len(found.files) for found in job.pending_sets("u")] == [0]


@pytest.mark.slow
def test_selection_from_thousands_of_pending_sets_needs_bounded_memory(world: World) -> None:
    world.open_job("sales").close()
    job = world.attach("sales-g1")
    sets, files = 2000, 20
    example = pending_set(world, "task-0000", files=files)
    text = encode(example)
    folder = Path(world.url) / job._folder.key("tasks")
    for number in range(sets):
        task = folder / f"task-{number:04d}"
        task.mkdir(parents=True)
        (task / "a1.pendingset").write_bytes(text.replace(b"task-0000", b"task-%04d" % number))
    tracemalloc.start()
    try:
        chosen = choose(job._folder, job.job_attempt)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(chosen) == sets
    assert sets * len(text) > 12 * MIB
    assert peak < 4 * MIB
    assert {msgspec.structs.asdict(example)["task_id"]} <= {one.task_id for one in chosen}
