"""Load a journal from a separate process: open it, report readiness, wait for the start, and count."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec
from prometheus_client import REGISTRY

from lockgate.storage_core.commit.registry.entries import RecordTask
from lockgate.storage_core.commit.registry.rows import TaskAttempt
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.journal import Journal, Leases, Mutation, Written, open_journal
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.observers.process_reader import open_observer
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.session_token import SessionToken

JOBS = 50
READS_A_WRITE = 19

Key = tuple[str, str, str, str]


class Told(msgspec.Struct):
    """The key of a row that a process has written, and its token then."""

    key: Key
    token: str


class Load(msgspec.Struct, kw_only=True):
    """Work of one process.

    Attributes:
        step: Kind of work.
        name: Distinguishes its tasks and leases from those of other processes.
        threads: Concurrent threads.
        size: Mutations per call, or leases per holder.
        observers: URLs of the observers for its reads.
        board: File in which each process leaves the token of its last write for the others.
    """

    step: Literal["write", "renew", "read"]
    url: str
    name: str = "load"
    seconds: float = 0.0
    threads: int = 1
    size: int = 1
    observers: tuple[str, ...] = ()
    board: str = ""


class Counted(msgspec.Struct):
    """Work that a process did: calls and items, its wall and CPU seconds, and reads that fell back."""

    calls: int
    items: int
    seconds: float
    cpu_s: float = 0.0
    fallbacks: float = 0.0


class Process:
    """A load that waits for its start."""

    def __init__(self, load: Load) -> None:
        command = [sys.executable, "-m", "benchmarks.journal_load", msgspec.json.encode(load).decode()]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self) -> None:
        """Wait until it has opened the journal."""
        if self._child.stdout is None or self._child.stdout.readline().strip() != "ready":
            raise RuntimeError(f"a load did not start: {self._child.args!r}")

    def start(self) -> None:
        """Start the work."""
        if self._child.stdin is not None:
            self._child.stdin.write("go\n")
            self._child.stdin.flush()

    def result(self) -> Counted:
        """Wait for the end and return the counts."""
        output, _ = self._child.communicate()
        return decode_json(output, Counted)

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        self._child.kill()
        self._child.communicate()


@contextmanager
def begun(loads: Sequence[Load]) -> Iterator[list[Process]]:
    """Start loads at the same time and yield their processes."""
    with ExitStack() as stack:
        processes = []
        for load in loads:
            processes.append(Process(load))
            stack.callback(processes[-1].kill)
        for process in processes:
            process.wait_until_ready()
        for process in processes:
            process.start()
        yield processes


def run_together(loads: Sequence[Load]) -> list[Counted]:
    """Run loads at the same time and return their counts."""
    with begun(loads) as processes:
        return [process.result() for process in processes]


def record(name: str, number: int) -> Mutation:
    """Return the record of a task commit."""
    return Mutation(
        op=RecordTask(
            destination="s3://lake/sales",
            job_id=f"{name}-{number % JOBS}-g1",
            task_id=f"task-{number:07d}",
            attempt_id=f"{number:016x}",
            job_attempt="5d41402abc4b2a76",
            files=3,
            rows=100_000,
            size_bytes=12_345_678,
        )
    )


def task_of(name: str, number: int) -> tuple[str, str, str, str]:
    """Return the key of the row that `record` writes."""
    return ("s3://lake/sales", f"{name}-{number % JOBS}-g1", f"task-{number:07d}", f"{number:016x}")


def in_threads(load: Load, work: Callable[[int], int]) -> Counted:
    """Call `work` with the thread's number in each thread until the time has passed; it returns its items."""
    calls, items = [0] * load.threads, [0] * load.threads
    began_s, began_cpu_s = time.perf_counter(), time.process_time()

    def run(thread: int) -> None:
        while time.perf_counter() - began_s < load.seconds:
            items[thread] += work(thread)
            calls[thread] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(load.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return Counted(sum(calls), sum(items), spent_s, cpu_s)


def write(load: Load, journal: Journal) -> Callable[[int], int]:
    """Return a function that writes `size` task commits."""
    numbers = [itertools.count() for _ in range(load.threads)]

    def work(thread: int) -> int:
        written = journal.write(
            [record(f"{load.name}-{thread}", next(numbers[thread])) for _ in range(load.size)]
        )
        return sum(isinstance(outcome, Written) for outcome in written)

    return work


def renew(load: Load, journal: Journal) -> Callable[[int], int]:
    """Return a function that renews the `size` leases of its thread's holder."""
    leases = Leases(journal)
    held = []
    for thread in range(load.threads):
        resources = [f"{load.name}-{thread}-{number}" for number in range(load.size)]
        taken = journal.write(
            [
                Mutation(
                    op=TakeLease(
                        resource=resource,
                        holder=f"{load.name}-{thread}",
                        purpose="write",
                        soft_s=60,
                        hard_s=600,
                    )
                )
                for resource in resources
            ]
        )
        pairs = zip(resources, taken, strict=True)
        held.append({resource: lease.stamp for resource, lease in pairs if isinstance(lease, Written)})

    def work(thread: int) -> int:
        return load.size - len(leases.renew(f"{load.name}-{thread}", held[thread]))

    return work


def read(load: Load, journal: Journal) -> Callable[[int], int]:
    """Return a function that writes one task commit, then reads one that it has been told of, and its own.

    It counts the reads that had the row; the others would be of a past state.
    """
    client = Client(journal, [open_observer(url, journal) for url in load.observers])
    numbers = [itertools.count() for _ in range(load.threads)]

    def has(key: Key) -> bool:
        return client.read(lambda reading: reading.get(TaskAttempt, *key)) is not None

    def work(thread: int) -> int:
        name, number = f"{load.name}-{thread}", next(numbers[thread])
        journal.write([record(name, number)])
        own = told = task_of(name, number)
        if load.board:
            board = Path(load.board)
            with suppress(FileNotFoundError):  # no other thread has written yet
                other = decode_json(board.read_bytes(), Told)
                client.see(SessionToken.parse(other.token))
                told = other.key
            mine = board.with_name(f"{board.name}-{name}")
            mine.write_bytes(msgspec.json.encode(Told(own, str(client.token))))
            mine.replace(board)
        return sum(map(has, (told, *[own] * (READS_A_WRITE - 1))))

    return work


def main() -> None:
    """Run the load of the command line and print its counts."""
    load = decode_json(sys.argv[1], Load)
    with open_journal(load.url) as journal:
        work = {"write": write, "renew": renew, "read": read}[load.step](load, journal)
        print("ready", flush=True)
        sys.stdin.readline()
        counted = in_threads(load, work)
    counted.fallbacks = REGISTRY.get_sample_value("lockgate_journal_observer_fallbacks_total") or 0.0
    print(msgspec.json.encode(counted).decode())


if __name__ == "__main__":
    main()
