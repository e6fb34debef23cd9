"""Measure a job commit of n pending files: seconds, requests and peak memory of the committing process.

    python -m benchmarks.job_commit [--files 1000 --files 10000] [--destination s3://bucket/prefix]

Tasks are committed in one process and the job in another, so that memory is that of the job commit alone. The
comparison completes every upload with 32 threads, without a protocol.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from lockgate import attach_job, open_job
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.instrumented import InstrumentedStore

TASK_FILES = 500


class Measured(msgspec.Struct):
    """Cost of one commit: wall and CPU seconds, requests, peak resident bytes."""

    wall_s: float
    cpu_s: float
    requests: int
    peak_bytes: int


def prepare(destination: str, files: int) -> str:
    """Write a job of small files, commit its tasks, and return its id."""
    job = open_job(destination, f"bench-{uuid.uuid4().hex}")
    for first in range(0, files, TASK_FILES):
        with job.attempt(f"task-{first:07d}") as attempt:
            for number in range(first, min(first + TASK_FILES, files)):
                with attempt.open(f"part={number % 16}/f-{number:07d}.bin") as file:
                    file.write(b"x" * 64)
    job.park()
    return job.job_id


def commit(destination: str, job_id: str) -> Measured:
    """Commit a prepared job in this process."""
    job = attach_job(destination, job_id)
    began_s = time.perf_counter()
    job.commit()
    wall_s = time.perf_counter() - began_s
    store = job.store
    used = resource.getrusage(resource.RUSAGE_SELF)
    requests = sum(store.requests.values()) if isinstance(store, InstrumentedStore) else 0
    return Measured(wall_s, used.ru_utime + used.ru_stime, requests, peak_bytes())


def complete_only(destination: str, job_id: str) -> Measured:
    """Complete a prepared job's uploads with 32 threads and nothing else."""
    from lockgate.storage_core.concurrency import in_parallel  # noqa: PLC0415 - not measured for `commit`

    job = attach_job(destination, job_id)
    files = [file for pending in job.pending_sets() for file in pending.files]
    store = open_store(destination, load_settings())
    began_s = time.perf_counter()
    for _ in in_parallel(lambda file: store.complete_upload(file.upload), files, 32):
        pass
    wall_s = time.perf_counter() - began_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Measured(wall_s, used.ru_utime + used.ru_stime, len(files), peak_bytes())


def peak_bytes() -> int:
    """Return the maximum resident size of this process so far.

    On Linux `ru_maxrss` includes the parent's size at the fork, so a large parent would hide the child's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_child(step: str, *arguments: str) -> str:
    """Run a step of this module in a new process and return its output."""
    command = [sys.executable, "-m", "benchmarks.job_commit", "--step", step, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def measure(destination: str, files: int, step: str) -> Measured:
    """Prepare a job and run one step with it, each in a new process."""
    here = f"{destination}/{uuid.uuid4().hex[:8]}"
    job_id = in_child("prepare", here, str(files))
    return msgspec.json.decode(in_child(step, here, job_id), type=Measured)


def test_server() -> str | None:
    """Return the URL of the tests' S3 server and set its credentials for boto3; None: there is no server."""
    url = os.environ.get("LOCKGATE_TEST_S3_URL")
    if url is not None:
        os.environ["AWS_ENDPOINT_URL"] = os.environ["LOCKGATE_TEST_S3_ENDPOINT"]
        os.environ["AWS_ACCESS_KEY_ID"] = os.environ["LOCKGATE_TEST_S3_KEY"]
        os.environ["AWS_SECRET_ACCESS_KEY"] = os.environ["LOCKGATE_TEST_S3_SECRET"]
    return url


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--destination", default=test_server())
    parser.add_argument("--step", choices=["prepare", "commit", "complete_only"])
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.step == "prepare":
        print(prepare(options.arguments[0], int(options.arguments[1])))
    elif options.step:
        measured = {"commit": commit, "complete_only": complete_only}[options.step](*options.arguments)
        print(msgspec.json.encode(measured).decode())
    else:
        with tempfile.TemporaryDirectory() as local:
            show(options.destination or local, options.files or [1000, 10_000], options.rounds)


def show(destination: str, counts: list[int], rounds: int) -> None:
    """Measure both ways alternately and print medians."""
    table = Table(title=f"Job commit at {destination} (median of {rounds})")
    for heading in ("files", "what", "wall s", "CPU s of the process", "requests", "peak MiB"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for files in counts:
        seen: dict[str, list[Measured]] = {"commit": [], "complete_only": []}
        for _ in range(rounds):
            for step, results in seen.items():
                results.append(measure(destination, files, step))
        for step, results in seen.items():
            middle = sorted(results, key=lambda one: one.wall_s)[len(results) // 2]
            table.add_row(
                f"{files:,}",
                "lockgate job commit" if step == "commit" else "completions alone, 32 threads",
                f"{middle.wall_s:.2f}",
                f"{middle.cpu_s:.2f}",
                f"{middle.requests:,}",
                f"{middle.peak_bytes / 2**20:.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
