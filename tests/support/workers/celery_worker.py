"""A staged job, and the workers that commit its tasks: shared by the tests of workers and operators."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from celery.contrib.testing.worker import start_worker
from kombu.transport.memory import Transport
from pyarrow import parquet

from lockgate import open_job
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.staged_files import group_into_tasks, list_staged
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.workers.broker.embedded_broker import stop_broker
from lockgate.workers.broker.lazy_broker import NOT_USED
from lockgate.workers.celery_app import QUEUES, app, configuration

READY = " ready."


def connect_again() -> None:
    """Reload the settings of this process's Celery application, like a new process."""
    app.close()
    app._used_for = NOT_USED
    app._local = threading.local()
    app._backend_cache = None
    for name in ("amqp", "control"):  # both keep producers of the earlier broker
        app.__dict__.pop(name, None)
    app.conf.update(configuration())


_drain_events = Transport.drain_events


def _drain_briefly(transport: Transport, connection: object, timeout: float | None = None) -> object:
    return _drain_events(transport, connection, timeout and min(timeout, 0.1))


@contextmanager
def memory_broker() -> Iterator[None]:
    """Make this process's application use Celery's in-memory broker, with empty queues."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCKGATE_BROKER_URL", "memory://")
        # A worker notices that it is to stop when it has waited for a message: two seconds, twice.
        environment.setattr(Transport, "drain_events", _drain_briefly)
        connect_again()
        app.conf.broker_transport_options["polling_interval"] = 0.01  # the default is one second
        with app.connection_for_write() as connection:
            for queue in QUEUES:  # one broker per process: an earlier test may have left messages
                app.amqp.queues[queue](connection.default_channel).declare()
                connection.default_channel.queue_purge(queue)
        yield


@contextmanager
def embedded_broker(home: Path, **environment: str) -> Iterator[Settings]:
    """Make this process and its children use a private Redis, which ends with the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKGATE_HOME", str(home))
        patch.delenv("LOCKGATE_BROKER_URL", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        connect_again()
        try:
            yield load_settings()
        finally:
            app.close()
            stop_broker(load_settings())


@contextmanager
def worker_thread(*queues: str) -> Iterator[None]:
    """Run a worker in a thread of this process until the block ends, on these queues or on all."""
    with start_worker(
        app, pool="solo", perform_ping_check=False, queues=list(queues or QUEUES), shutdown_timeout=30
    ):
        yield


@dataclass
class StagedJob:
    """A job with finished files in a staging directory, ready for task commits.

    Attributes:
        root: Folder of everything that is not at the destination.
        destination: URL of its destination; by default a folder in `root`.
    """

    root: Path
    settings: Settings
    files: int = 6
    rows_a_file: int = 10
    destination: str = ""
    audit: bool = False
    job: Job = field(init=False)

    def __post_init__(self) -> None:
        self.destination = self.destination or (self.root / "lake").as_uri()
        self.staging.mkdir(parents=True)
        for number in range(self.files):
            folder = self.staging / f"month={number % 3 + 1}"
            folder.mkdir(exist_ok=True)
            first = number * self.rows_a_file
            table = pa.table({"row": range(first, first + self.rows_a_file)})
            parquet.write_table(table, folder / f"part-{number:05d}.parquet")
        (self.staging / "_SUCCESS").touch()
        self.job = open_job(
            self.destination, "flights", committer="staging", audit=self.audit, settings=self.settings
        )
        tasks = group_into_tasks(list_staged(self.staging), max_files=1)
        self.job.expect(tasks, staging=str(self.staging))
        self.task_ids = [str(task.task_id) for task in tasks]
        self.job.suspend()

    @property
    def staging(self) -> Path:
        """Return the folder of its files."""
        return self.root / "staged"

    @property
    def store(self) -> Store:
        """Return the store of its destination."""
        return open_store(self.destination, self.settings)

    @property
    def ids(self) -> tuple[str, str, str]:
        """Return the arguments of a worker: destination, job, job attempt."""
        return self.destination, self.job.job_id, self.job.job_attempt

    def attach(self) -> Job:
        """Attach to the job as another process would."""
        return attach_job(
            self.destination, self.job.job_id, job_attempt=self.job.job_attempt, settings=self.settings
        )

    def committed_attempts(self) -> list[str]:
        """Return the id of each committed task, once per commit."""
        return sorted(found.task_id for found in self.attach().pending_sets())

    def visible_rows(self) -> list[int]:
        """Return every row of every live file, sorted: a row that was committed twice appears twice."""
        rows: list[int] = []
        for key in read_manifest(self.destination, settings=self.settings).files:
            rows += parquet.ParquetFile(BytesIO(self.store.get(key))).read().column("row").to_pylist()
        return sorted(rows)

    def listed(self) -> list[str]:
        """Return the data files that a listing reader finds."""
        keys = (info.key for page in self.store.pages() for info in page)
        return [key for key in keys if not key.startswith("_")]

    def open_uploads(self) -> list[str]:
        """Return the keys of open uploads."""
        return [info.key for page in self.store.upload_pages() for info in page]

    @property
    def all_rows(self) -> list[int]:
        """The rows that must be visible in the end."""
        return list(range(self.files * self.rows_a_file))


@dataclass
class WorkerProcess:
    """A Celery worker in a separate process, with a pool of child processes."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        """Process id of the main process."""
        return self.process.pid

    def wait_for_line(self, text: str) -> None:
        """Wait until the worker has logged it."""
        wait_until(lambda: text in self.log.read_text())

    def stop(self, order: signal.Signals = signal.SIGTERM) -> int:
        """Stop it as a supervisor does, and return its exit code: -9 if it did not end in time.

        Celery's cold stop waits for the pool within the signal handler, whatever the event loop was doing: it
        was seen to wait for ever on a loaded machine.
        """
        if self.process.poll() is None:
            self.process.send_signal(order)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            return self.process.wait()


def wait_until(condition: Callable[[], bool], within_s: float = 300) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it has not happened")
        time.sleep(0.05)


@contextmanager
def worker_process(
    log: Path,
    *,
    name: str = "worker",
    queues: Sequence[str] = QUEUES,
    pool: str = "prefork",
    application: str = "lockgate.workers",
    environment: Mapping[str, str] | None = None,
) -> Iterator[WorkerProcess]:
    """Run a worker until the block ends; yields when it is ready.

    Args:
        log: File for its output.
        name: Its name, without the host's.
        queues: Queues that it takes messages from.
        pool: Kind of its pool.
        application: Module of the Celery application.
        environment: Additional environment.
    """
    command = [sys.executable, "-m", "celery", "-A", application, "worker", "-Q", ",".join(queues)]
    command += ["-n", f"{name}@%h", "-c", "2", "-P", pool, "--without-gossip", "--without-mingle"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "-l", "INFO"],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        worker, ready = WorkerProcess(process, log), threading.Event()
        reader = threading.Thread(target=_copy, args=(process, out, ready))
        reader.start()
        try:
            if not ready.wait(300) or process.poll() is not None:
                raise AssertionError(f"the worker did not start:\n{log.read_text()}")
            yield worker
        finally:
            worker.stop()
            reader.join()


def _copy(process: subprocess.Popen[str], out: object, ready: threading.Event) -> None:
    with process.stdout:  # type: ignore[union-attr]
        for line in process.stdout:  # type: ignore[union-attr]
            out.write(line)  # type: ignore[attr-defined]
            out.flush()  # type: ignore[attr-defined]
            if READY in line:
                ready.set()
    ready.set()
