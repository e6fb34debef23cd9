"""Interrupts: an error that a signal handler raises, as at Ctrl-C or a time limit, counts as a crash.

Nothing wrong is acknowledged, recovery brings what was interrupted to its end, and new work goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from billiard.exceptions import SoftTimeLimitExceeded  # type: ignore[import-untyped]  # billiard has no types

from lockgate.operators.jobs import JobCommitOperator
from lockgate.storage_core.errors import FencedError, LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.journal import open_journal
from lockgate.storage_core.settings import load_settings
from lockgate.workers.task_commit import commit_staged_task
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import ManualClock, World, write
from tests.support.soak import rounds, soak_only
from tests.support.workers.celery_worker import StagedJob

pytestmark = pytest.mark.fault

NEW = {"a.csv": b"1", "b.csv": b"22"}
PATH = "/a.log"


class Handler:
    """A signal handler that raises an error, and what sends its signal at one step of a run."""

    def __init__(self, error: type[BaseException], at: int) -> None:
        self.error = error
        self.left = at
        self.came = False

    def step(self, _: object = None) -> None:
        """Pass a step; only those of the main thread count, where Python runs its handlers."""
        if threading.current_thread() is threading.main_thread():
            self.left -= 1
            if self.left == 0:
                self.came = True
                signal.raise_signal(signal.SIGUSR1)

    def handle(self, number: int, frame: object) -> None:
        raise self.error


@contextmanager
def signalled(error: type[BaseException], at: int = 1) -> Iterator[Handler]:
    """Interrupt the block at its step with this number, from 1."""
    handler = Handler(error, at)
    before = signal.signal(signal.SIGUSR1, handler.handle)
    FAILPOINTS.observer = handler.step
    try:
        yield handler
    finally:
        FAILPOINTS.observer = None
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interrupted(error: type[BaseException], at: int = 1) -> Iterator[Handler]:
    """Interrupt the block, and go on behind it."""
    with suppress(error), signalled(error, at) as handler:
        yield handler


class SteppedDisk(Disk):
    """A disk each of whose calls is a step before it and a step behind it."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def write(self, file: int, position: int, *pieces: bytes) -> None:
        self.step()
        super().write(file, position, *pieces)
        self.step()

    def sync(self, file: int) -> None:
        self.step()
        super().sync(file)
        self.step()

    def sync_data(self, file: int) -> None:
        self.step()
        super().sync_data(file)
        self.step()

    def link(self, source: Path, path: Path) -> None:
        self.step()
        super().link(source, path)
        self.step()

    def rename(self, source: Path, path: Path) -> None:
        self.step()
        super().rename(source, path)
        self.step()


class FileScene:
    """Appendable files on one volume, in a process that goes on after an interrupt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = SteppedDisk()
        self.clock = ManualClock()
        self.stack = ExitStack()
        self.journal = self.stack.enter_context(
            open_journal(f"sqlite:///{root}/journal.db", clock=self.clock)
        )
        volume = self.stack.enter_context(DirectoryVolume(root / "volume", disk=self.disk))
        self.files = Files(self.journal, {volume.id: volume}, load_settings(home=root), block_bytes=100)
        self.stack.callback(self.files.close)

    def __enter__(self) -> FileScene:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def read(self) -> bytes:
        with self.files.open(PATH) as reader:
            return reader.read()

    def lapse(self) -> None:
        """Let the lease of a writer that is not renewed lapse."""
        Leases(self.journal).look(file_resource(self.files.status(PATH).inode))  # this process has seen it
        self.clock.sleep(1000)


def log_lines(scene: FileScene, handler: Handler) -> bytes:
    """Write some lines, and return those that were flushed before the interrupt."""
    flushed = b""
    scene.disk.step = handler.step
    with suppress(handler.error), scene.files.append(PATH) as log:
        for number in range(3):
            log.write(b"%d." % number * 30)
            log.flush()
            flushed += b"%d." % number * 30
    scene.disk.step = lambda: None
    return flushed


@pytest.mark.parametrize("error", [KeyboardInterrupt, soak_only(TimeoutError)])
def test_an_interrupted_file_is_recovered_and_appended_to(tmp_path: Path, error: type[BaseException]) -> None:
    """At each step of the disk, the journal and the pipeline; in `make test` at every fifth one."""
    for at in count(1, rounds(5, 1)):
        (root := tmp_path / str(at)).mkdir()
        with FileScene(root) as scene:
            scene.files.create(PATH).close()
            with interrupted(error, at) as handler:
                flushed = log_lines(scene, handler)
            scene.lapse()
            with scene.files.append(PATH) as log:
                found = scene.read()
                log.write(b"new")
            assert found.startswith(flushed), at
            assert b"".join(b"%d." % number * 30 for number in range(3)).startswith(found), at
            assert scene.read() == found + b"new", at
        with DirectoryVolume(root / "volume") as volume:  # as a later process finds it
            assert {replica.state for replica in volume.replicas(None, 10)} <= {ReplicaState.SEALED}, at
        if not handler.came:
            break
    assert at > 20


def test_an_interrupted_writer_acknowledges_nothing_more(tmp_path: Path) -> None:
    with FileScene(tmp_path) as scene:
        log = scene.files.create(PATH)
        log.write(b"flushed")
        log.flush()
        log.write(b"lost")
        with interrupted(KeyboardInterrupt):
            log.flush()
        for call in (log.flush, log.tell, lambda: log.write(b"more"), log.close):
            with pytest.raises(FencedError, match="was interrupted, as by Ctrl-C or a time limit"):
                call()
        with pytest.raises(ValueError, match="closed"):
            log.flush()
        scene.lapse()
        assert scene.files.recover(PATH) in {len(b"flushed"), len(b"flushedlost")}


@pytest.mark.parametrize("interrupt", [signalled, interrupted])
def test_a_block_of_an_interrupted_writer_ends_with_an_error(
    tmp_path: Path, interrupt: Callable[..., AbstractContextManager[Handler]]
) -> None:
    def flush_in_a_block() -> None:
        with scene.files.create(PATH) as log:
            log.write(b"lost")
            with interrupt(KeyboardInterrupt):
                log.flush()

    with (
        FileScene(tmp_path) as scene,
        pytest.raises(KeyboardInterrupt if interrupt is signalled else FencedError),
    ):
        flush_in_a_block()


def run_job(world: World) -> bool:
    """Run a job in its `with` block, as in a script; return whether its commit was acknowledged."""
    with world.open_job("sales") as job:
        write(job, "t", NEW)
        job.commit()
    return True


def test_an_interrupted_job_is_published_whole_or_not_and_the_next_one_goes_on(tmp_path: Path) -> None:
    for at in count(1, rounds(3, 1)):
        world = World(tmp_path / str(at), (tmp_path / str(at) / "lake").as_uri())
        is_acknowledged = False
        with interrupted(KeyboardInterrupt, at) as handler:
            is_acknowledged = run_job(world)
        world.recover()
        found = world.visible()
        assert found in ({}, NEW), at
        assert found == NEW or not is_acknowledged, at
        world.run("next", {"c.csv": b"3"})
        assert world.visible() == found | {"c.csv": b"3"}, at
        if not handler.came:
            break
    assert at > 20


def test_a_task_at_its_soft_time_limit_is_committed_once_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    for at in count(1):
        staged = StagedJob(tmp_path / str(at), load_settings(), files=2)
        first, second = staged.task_ids
        with interrupted(SoftTimeLimitExceeded, at) as handler:
            commit_staged_task(*staged.ids, first)
        for task in (first, second):  # sent again, as it was not acknowledged
            commit_staged_task(*staged.ids, task)
        receipt = staged.attach().commit()
        assert (receipt.files, receipt.rows, len(staged.listed())) == (2, 20, 2), at
        assert staged.open_uploads() == [], at
        if not handler.came:
            break
    assert at > 5


class TaskTimeout(BaseException):
    """What Airflow's supervisor of a task raises at its `execution_timeout`."""


def test_a_commit_operator_at_its_timeout_succeeds_when_airflow_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in count(1, rounds(7, 1)):
        root = tmp_path / str(at)
        monkeypatch.setenv("LOCKGATE_HOME", str(root / "home"))
        world = World(root, (root / "lake").as_uri())
        job = world.open_job("sales")
        write(job, "t", NEW)
        job.suspend()
        handle = {"destination": world.url, "job_id": job.job_id, "job_attempt": job.job_attempt}

        def commit(handle: dict[str, str] = handle) -> None:
            JobCommitOperator(task_id="commit", job=handle).execute(TaskRun(task_id="commit").context())

        with interrupted(TaskTimeout, at) as handler:
            commit()
        assert world.visible() in ({}, NEW), at
        with suppress(LockgateError):
            commit()
        world.recover()
        assert world.visible() == NEW, at
        if not handler.came:
            break
    assert at > 10
