"""Blob servers, caches and sweeps that are killed at a step, in forks of the test's process.

A step is a call that changes a file or a folder, or a transaction of the journal. One that is killed before
its n-th step has executed all previous steps, and has written all confirmed results to a file.
"""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.keys import check_blob_key, new_blob_key
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, UploadSet
from lockgate.storage_core.blobs.registry.references import FinishBlobJob
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.server.open_upload_sets import HARD_S
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import INCOMING, LocalBlobs
from lockgate.storage_core.blobs.sweep.lapsed_sets import lapsed_sets, remember
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.remains import everything
from tests.support.blobs.server import INTERVAL_S, BlobWorld
from tests.support.commit.destination import ManualClock
from tests.support.soak import rounds

PART_BYTES: Final = 1_000
BEGINS_S: Final = 1_800_000_000.0
STEPS: Final = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "truncate", "unlink", "utime")
"""Calls of the operating system that change what others find."""

Confirm = Callable[[BlobInfo], None]
"""Records a blob that was confirmed to a caller and has to be kept."""

Act = Callable[[BlobWorld, Confirm], None]
"""The action of the process that is killed."""


@contextmanager
def world_at(root: Path, now_s: float) -> Iterator[BlobWorld]:
    """Run a server over the files below a root, in a process that starts now and ends as if killed."""
    clock = ManualClock(now_s)
    store = instrument(LocalStore(root / "ha"))
    with open_journal(f"sqlite:///{root}/journal.db", clock=clock) as journal:
        ha = HaBlobs(store, part_bytes=PART_BYTES, parallelism=1)
        server = BlobServer(LocalBlobs(root / "blobs"), ha, journal, clock=clock)
        try:
            yield BlobWorld(root, clock, journal, store, server)
        finally:
            server.sets.renewer.close()


def prepare(root: Path) -> list[BlobInfo]:
    """Create data of every kind; return the blobs that are kept."""
    root.mkdir()
    with world_at(root, BEGINS_S) as world:
        server = world.server
        server.put(b"staged", job_id="sales")
        server.put(b"staged message", guarantee="recreatable")
        server.put(b"the last of its folder", job_id="left")
        server.put(b"never fetched", guarantee="recreatable", owners=["receiver:1"], lapse_s=60.0)
        server.put(b"half of a set", job_id="next", upload_set=server.begin_set("next"))
        for number in range(3):
            server.put(b"done %d" % number, job_id="done", owners=["job", f"viewer:{number}"])
        world.journal.apply(FinishBlobJob(job_id="done"))
        kept = [
            server.put(b"library " * 500, job_id="sales", owners=["job"]),
            server.put(b"message", guarantee="recreatable", owners=["receiver:2"]),
            server.put(b"log", job_id="sales", use="log", guarantee="recreatable", owners=["viewer:1"]),
        ]
        assert server.sets.own.latest is not None
        with server.stores.local.incoming() as incoming:
            incoming.write(b"never recorded")
            stray = new_blob_key(incoming.digest, server.sets.own.latest)
            path = server.stores.local.place(incoming, "sales", stray)
        assert server.stores.ha is not None
        server.stores.ha.put(path, "sales", stray)
        server.stores.ha.store.begin_upload(
            f"sales/{new_blob_key('0' * 64, server.sets.own.latest)}", new_token()
        )
        (root / "blobs" / ".incoming" / ("0" * 32)).write_bytes(b"half")
        with world.journal.reading() as reading:  # an earlier sweep has seen the open sets
            remember(server.stores, lapsed_sets(server.stores, reading)[1])
    return kept


@dataclass
class Death:
    """A process that was killed, and the results that it had confirmed.

    Attributes:
        step: Step before which it was killed; empty if it ran to its end.
        confirmed: Results that had been confirmed to callers.
    """

    step: str
    confirmed: list[BlobInfo]


class Deaths:
    """One run, killed at each of its steps.

    Args:
        root: Folder of the world, each time a copy of `template`.
        template: Folder made by `prepare`.
        act: Action to run.
        after_s: Start of the action, in seconds after the world's start.
    """

    def __init__(self, root: Path, template: Path, act: Act, *, after_s: float) -> None:
        self._root = root
        self._template = template
        self._act = act
        self.dies_s = BEGINS_S + after_s

    def each(self) -> Iterator[Death]:
        """Yield a death before each step, in `make test` before every other one, and the run's end."""
        for number in range(0, 10_000, rounds(2, 1)):
            shutil.rmtree(self._root, ignore_errors=True)
            shutil.copytree(self._template, self._root)
            death = self._killed_at(number)
            yield death
            if not death.step:
                return

    def _killed_at(self, number: int) -> Death:
        record, at = self._root / "confirmed", self._root / "at"
        child = os.fork()
        if child == 0:
            os._exit(self._live(number, record, at))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code not in {0, -signal.SIGKILL}:
            raise AssertionError(f"the run failed before its step {number}: {record.read_text()}")
        lines = record.read_text().splitlines() if record.exists() else []
        confirmed = [
            BlobInfo(job_id=job, blob_key=check_blob_key(key), size_bytes=int(size))
            for job, key, size in (line.split() for line in lines)
        ]
        step = at.read_text() if code else ""
        for file in (record, at):
            file.unlink(missing_ok=True)
        return Death(step, confirmed)

    def _live(self, number: int, record: Path, at: Path) -> int:
        def confirm(blob: BlobInfo) -> None:
            with record.open("a") as file:
                file.write(f"{blob.job_id} {blob.blob_key} {blob.size_bytes}\n")

        try:
            with world_at(self._root, self.dies_s) as world:
                _kill_at(number, at)
                self._act(world, confirm)
        except BaseException:  # noqa: BLE001 - the parent reports it
            record.write_text(traceback.format_exc())
            return 1
        return 0


def _kill_at(number: int, at: Path) -> None:
    """Kill this process before its step of this number, from 0."""
    passed = 0

    def step(name: str) -> None:
        nonlocal passed
        if passed == number:
            at.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    def before(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            step(name)
            return call(*arguments, **named)

        return called

    def observe(point: str) -> None:
        if ".journal-write" in point or ".journal-renew" in point:
            step(point)

    FAILPOINTS.observer = observe
    for name in STEPS:
        setattr(os, name, before(name, getattr(os, name)))


def assert_settled(root: Path, died_s: float, live: list[BlobInfo], where: str) -> None:
    """Confirmed blobs stay and all else is deleted after two intervals; after a drop all is deleted."""
    with world_at(root, died_s) as world:
        assert_live(world, live, where)
        for pause_s in (HARD_S, INTERVAL_S, INTERVAL_S):
            world.clock.sleep(pause_s)
            report = world.server.sweep(dry_run=False)
            assert report.problems == (), where
            assert_live(world, live, where)
        assert_nothing_but_what_is_kept(world, where)
        for job_id in {row.job_id for row in world.server.page()} - {"no_job"}:
            world.server.finish(job_id)
        for owner in {reference.owner for reference in world.server.references()}:
            world.server.drop_owner(owner)
        for _ in range(2):
            world.clock.sleep(INTERVAL_S)
            world.server.sweep(dry_run=False)
        assert everything(world) == [], where
        with world.journal.reading() as reading:
            left = {kind.__name__: list(reading.where(kind, {})) for kind in known_families().rows}
        assert not any(left.values()), (where, left)


def assert_live(world: BlobWorld, live: list[BlobInfo], where: str) -> None:
    """Assert that every kept blob can be read completely."""
    for blob in live:
        assert len(world.server.get(blob.job_id, blob.blob_key)) == blob.size_bytes, where


def assert_nothing_but_what_is_kept(world: BlobWorld, where: str) -> None:
    """Assert that every file has a row, and every row its files and a reference."""
    rows = {row.key: row for row in world.server.page()}
    local, ha = world.server.stores.local, world.server.stores.ha
    assert ha is not None
    assert {(found.job_id, found.blob_key) for job in local.jobs() for found in local.blobs(job)} == set(rows)
    assert {(found.job_id, found.blob_key) for found in ha.blobs()} == {
        key for key, row in rows.items() if row.guarantee == "ha"
    }, where
    assert list((local.path / INCOMING).glob("*")) == [], where
    assert [one for page in ha.open_uploads() for one in page] == [], where
    assert world.server.verify(deep=True).findings == (), where
    kept = {(one.job_id, one.blob_key) for one in world.server.references()}
    assert {row.key for row in rows.values() if row.staged_s or row.deleting_s} == set(), where
    assert kept == set(rows), where
    with world.journal.reading() as reading:
        assert [one for kind in (UploadSet, Lease) for one in reading.where(kind, {})] == [], where
        assert [job for job in reading.where(BlobJob, {}) if job.final_s is not None] == [], where
        assert len(reading.where(Blob, {})) == len(rows)
