"""A job id is reused while a process is stopped: when it resumes, it deletes nothing of the new job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.registry.blob_rows import BlobJob
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.errors import FencedError, LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import open_journal
from tests.support.blobs.server import INTERVAL_S, BlobWorld, new_server
from tests.support.soak import rounds

pytestmark = pytest.mark.slow

LARGE = bytes(11 * 1024 * 1024)
"""Large enough to be uploaded to the HA store in parts."""


@dataclass
class Stopped:
    """One run: a job, a server that is stopped, and another server over the same stores that continues."""

    world: BlobWorld
    job_id: str
    server: BlobServer
    other: BlobServer
    later: list[BlobInfo] = field(default_factory=list)

    def put(self, server: BlobServer, data: bytes = b"bytes") -> BlobInfo:
        return server.put(data, job_id=self.job_id, owners=["viewer:1"])

    def job(self) -> BlobJob | None:
        with self.world.journal.reading() as reading:
            return reading.get(BlobJob, self.job_id)

    def job_ends(self) -> None:
        self.other.finish(self.job_id)

    def end_is_forgotten(self) -> None:
        """End the job and let time pass until its end is forgotten."""
        self.job_ends()
        while self.job() is not None:
            self.world.clock.sleep(INTERVAL_S / 2)
            self.other.sets.renewer.renew()
            self.other.sweep(dry_run=False)

    def another_begins(self) -> None:
        """End the job, let its end be forgotten, and begin another job with the same id."""
        self.end_is_forgotten()
        upload_set = self.other.begin_set(self.job_id)
        joined = self.other.put(b"library", job_id=self.job_id, upload_set=upload_set)
        self.other.complete_set(upload_set)
        self.other.submit(self.job_id, [joined.blob_key])
        self.later = [joined, self.put(self.other)]

    def is_whole(self, blob: BlobInfo) -> bool:
        return self.world.is_local(blob) and self.world.is_in_ha(blob) and self.world.row(blob) is not None

    def files(self) -> list[Path]:
        """Return the files of both stores under the job's id."""
        return [
            path for store in ("blobs", "ha") for path in (self.world.root / store / self.job_id).glob("*")
        ]


@contextmanager
def server(world: BlobWorld) -> Iterator[BlobServer]:
    """Return a server as another process would open it, over the same stores and the same journal."""
    with (
        open_journal(f"sqlite:///{world.root}/journal.db", clock=world.clock) as journal,
        new_server(world.root, world.store, journal, world.clock) as opened,
    ):
        yield opened


def stopped_anywhere(
    world: BlobWorld, run: Callable[[Stopped], object], meanwhile: Callable[[Stopped], object]
) -> Iterator[Stopped]:
    """Stop a run at its points in turn, do something else there, and resume the run to its end.

    `make test` stops it at every third point.
    """
    for number in count(0, rounds(3, 1)):
        with ExitStack() as open_:
            stopped, other = (open_.enter_context(server(world)) for _ in range(2))
            it = Stopped(world, f"sales-{number}", stopped, other)
            for _ in range(2):
                it.put(it.other)
            if not _stopped(number, partial(run, it), partial(meanwhile, it)):
                assert number > 5, "it has more points than that"
                return
            yield it


def _stopped(number: int, run: Callable[[], object], meanwhile: Callable[[], object]) -> bool:
    points, stopped = count(), list[str]()

    def observe(point: str) -> None:
        if not stopped and next(points) == number:
            stopped.append(point)
            meanwhile()

    FAILPOINTS.observer = observe
    try:
        run()
    except LockgateError:
        assert stopped, "the run failed although nothing was done in between"
    finally:
        FAILPOINTS.observer = None
    return bool(stopped)


def test_a_job_end_stopped_at_any_point_deletes_nothing_of_a_new_job_with_its_id(world: BlobWorld) -> None:
    kept = 0
    for it in stopped_anywhere(world, lambda it: it.server.finish(it.job_id), Stopped.another_begins):
        job = it.job()
        assert job is not None
        if (
            job.final_s is None
        ):  # otherwise the run was stopped before it ended the first job, and has ended this one
            assert all(map(it.is_whole, it.later))
            kept += 1
    assert kept > rounds(1, 5)


@pytest.mark.parametrize("data", [b"small", LARGE])
def test_a_put_stopped_at_any_point_while_its_job_ends_is_whole_or_leaves_nothing(
    world: BlobWorld, data: bytes
) -> None:
    put: list[BlobInfo] = []
    for it in stopped_anywhere(
        world, lambda it: put.append(it.put(it.server, data)), Stopped.end_is_forgotten
    ):
        known = [blob for blob in put if world.row(blob) is not None]
        assert all(map(it.is_whole, known))
        assert len(it.files()) == 2 * len(known)
        put.clear()


def test_a_put_begun_after_the_end_of_its_job_is_whole_if_it_completes_after_the_end_is_forgotten(
    world: BlobWorld,
) -> None:
    """Its set is newer than the end, so the end is forgotten before the put is recorded."""
    put: list[BlobInfo] = []

    def put_late(it: Stopped) -> None:
        it.server.finish(it.job_id)
        world.clock.sleep(INTERVAL_S - 1)
        with suppress(FencedError):
            put.append(it.put(it.server))

    def time_passes(it: Stopped) -> None:
        world.clock.sleep(1)
        it.other.sets.own.end_old()  # an end is not forgotten before the sets from before it are closed
        it.other.sweep(dry_run=False)

    for it in stopped_anywhere(world, put_late, time_passes):
        assert all(map(it.is_whole, put))
        assert len(it.files()) == 2 * len(put)
        put.clear()


def test_files_behind_a_link_in_place_of_a_jobs_folder_are_kept(world: BlobWorld, tmp_path: Path) -> None:
    world.server.put(b"of another job")
    theirs = tmp_path / "theirs"
    (theirs / "more").mkdir(parents=True)
    (theirs / "data.csv").write_text("theirs")
    (world.server.stores.local.path / "sales").symlink_to(theirs)
    world.server.put(b"a", job_id="sales")
    world.server.finish("sales")
    assert sorted(path.name for path in theirs.iterdir()) == ["data.csv", "more"]
