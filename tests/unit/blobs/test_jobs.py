"""Jobs with blobs are counted and listed page by page on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.blobs.http.access import RequestedAccess
from lockgate.storage_core.blobs.registry.queries import JobBlobs, jobs_of
from lockgate.storage_core.errors import AccessDeniedError
from tests.support.blobs.http_server import client_of, served
from tests.support.blobs.server import BlobWorld, blob_world

NAMES = ["A", "B-1", "a", "b", "b.1", "b_1"]
"""Ids that databases sort in more than one way."""


def submitted(world: BlobWorld, job: str, sizes: list[int]) -> None:
    keys = [world.server.put(b"x" * size, job_id=job).blob_key for size in sizes]
    world.server.submit(job, keys)


def test_every_job_is_listed_on_exactly_one_page_at_any_page_size(world: BlobWorld) -> None:
    for count, job in enumerate(NAMES):
        submitted(world, job, [1, 10][: count % 3])
        if count % 2:
            world.server.put(b"and one that was not submitted", job_id=f"{job}-0")
    seen: list[JobBlobs] = []
    with world.journal.reading() as reading:
        while page := jobs_of(reading, after=seen[-1].job_id if seen else "", limit=2):
            assert len(page) <= 2
            seen += page
        assert jobs_of(reading) == seen
    assert sorted(one.job_id for one in seen) == sorted([*NAMES, *(f"{job}-0" for job in NAMES[1::2])])
    counted = {one.job_id: (one.blobs, one.size_bytes) for one in seen}
    assert [counted[job] for job in NAMES] == [(0, 0), (1, 1), (2, 11)] * 2
    assert {counted[f"{job}-0"] for job in NAMES[1::2]} == {(1, 30)}


def test_a_job_reports_the_time_of_its_oldest_blob_and_its_progress(world: BlobWorld) -> None:
    put_s = world.clock.now_s()
    world.server.put(b"first", job_id="sales")
    assert world.server.jobs("sales") == [JobBlobs(job_id="sales", blobs=1, size_bytes=5, since_s=put_s)]
    world.clock.sleep(10.0)
    keys = [world.server.put(b"second", job_id="sales").blob_key]
    world.clock.sleep(10.0)
    world.server.submit("sales", keys, destination="s3://lake/sales", commit_job="sales-g1")
    world.clock.sleep(10.0)
    world.server.finish("sales")
    assert world.server.jobs("sales") == [
        JobBlobs(
            job_id="sales",
            blobs=2,
            size_bytes=11,
            since_s=put_s,
            destination="s3://lake/sales",
            commit_job="sales-g1",
            submitted_s=put_s + 20.0,
            final_s=put_s + 30.0,
        )
    ]
    assert world.server.jobs("other") == []


def test_a_token_for_one_job_shows_that_job_and_a_token_for_all_shows_all(tmp_path: Path) -> None:
    async def only_sales(_request: object, access: RequestedAccess) -> None:
        if access.job_id != "sales":
            raise AccessDeniedError("this token opens sales")

    with blob_world(tmp_path) as world:
        world.server.put(b"first", job_id="sales")
        world.server.put(b"first", job_id="other")
        with served(world.server) as url, client_of(url) as client:
            assert [one.job_id for one in client.jobs()] == ["other", "sales"]
            assert [one.job_id for one in client.jobs(after="other")] == ["sales"]
        with served(world.server, only_sales) as url, client_of(url) as client:
            assert list(client.jobs("sales")) == world.server.jobs("sales")
            for job in ("other", None):
                with pytest.raises(AccessDeniedError):
                    client.jobs(job)
