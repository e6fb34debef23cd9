"""A destination with very many open uploads of other jobs: a job reads few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import UploadGoneError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import UploadInfo
from lockgate.storage_core.stores.local import pending_uploads
from lockgate.storage_core.stores.local.rooted_dir import RootedDir
from tests.support.commit.destination import World, write

STORM = 20_000
NEW = {f"{number}.csv": b"x" for number in range(20)}
MOST = 2000 + 10 * len(NEW) + 1000
"""What a job with these files may read in one step: the limit, and the rest of a page."""


class Storm:
    """Open uploads of other jobs, which a listing returns before the others of its prefix.

    Attributes:
        read: Number of them that were read.
        prefixes: Prefix of each listing.
    """

    def __init__(self) -> None:
        self.read = 0
        self.prefixes: list[str] = []
        self._listed = pending_uploads.still_open

    def still_open(self, tree: RootedDir, prefix: str) -> Iterator[UploadInfo]:
        self.prefixes.append(prefix)
        for number in range(STORM):
            key = f"!/{number}.csv"
            if key.startswith(prefix):
                self.read += 1
                yield UploadInfo(key=key, upload_id=f"{number:032x}", begun_s=0.0, size=0)
        yield from self._listed(tree, prefix)


@pytest.fixture
def storm(monkeypatch: pytest.MonkeyPatch) -> Storm:
    storm = Storm()
    monkeypatch.setattr(pending_uploads, "still_open", storm.still_open)
    return storm


def open_uploads(world: World) -> list[str]:
    return [key for key in world.open_uploads() if not key.startswith("!/")]


def test_a_commit_reads_a_number_of_other_jobs_uploads_that_depends_on_its_own_files(
    world: World, storm: Storm
) -> None:
    with world.open_job("sales") as job:
        write(job, "loser", {"loser.csv": b"1"})
        write(job, "t", NEW)
        winners = {found.task_id: found.attempt_id for found in job.pending_sets() if found.task_id == "t"}
        job.commit(winners=winners)
    assert 0 < storm.read <= 2 * MOST
    assert world.visible() == NEW
    assert open_uploads(world) == []


def test_a_check_of_the_uploads_of_one_partition_lists_only_that_partition(
    world: World, storm: Storm
) -> None:
    with world.open_job("sales") as job:
        write(job, "t", {f"day=1/hour={number}/a.csv": b"x" for number in range(3)})
        storm.prefixes.clear()
        job.commit()
    assert storm.prefixes == ["day=1/", ""]


def test_a_lost_upload_is_noticed_beside_many_others(world: World, storm: Storm) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    lost = next(job.pending_sets()).files[7].upload
    world.store.abort_upload(lost.key, lost.upload_id)
    with pytest.raises(UploadGoneError, match="1 of its 20 pending uploads are gone"):
        job.commit()
    assert storm.read <= 2 * MOST
    assert open_uploads(world) == []


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_the_sweep_aborts_what_a_killed_attempt_left_beside_many_others(
    world: World, storm: Storm, end: str
) -> None:
    job = world.open_job("sales")
    write(job, "t", NEW)
    leaked = f"leaked-{job.short_id}.csv"
    world.store.begin_upload(leaked, new_token())
    ends: dict[str, Callable[[], object]] = {"abort": job.abort, "commit": job.commit}
    ends[end]()
    assert open_uploads(world) == [leaked]
    storm.read = 0
    sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert storm.read == STORM
    assert open_uploads(world) == []
