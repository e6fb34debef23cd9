"""Compare S3 calls sent by AWS CRT with the same calls of boto3.

    python -m scripts.with_servers --s3 python -m benchmarks.s3_calls [--calls 300] [--rounds 5] [--mib 64]

Both alternate in one process against one server, whose CPU time is not counted; "at once" is the number of
calls under way. A completion has one part of ten bytes, which is put before the measurement. Large files are
put in parts of 16 MiB by 16 threads, and by boto3's transfer manager with the same parts and threads.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config as BotoConfig
from rich.console import Console
from rich.table import Table

from benchmarks.job_commit import test_server
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.uploads.upload_completion import Completions
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.ids import Token
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.protocol import Part, PendingUpload, Store

SIZE: Final = 10 * 2**10
PART_BYTES: Final = 16 * 2**20
THREADS: Final = 16
WAYS: Final = ("crt", "boto3")


class Spent(NamedTuple):
    """Time per call, in microseconds."""

    cpu_us: float
    wall_us: float


class Work(NamedTuple):
    """Calls of one kind. `run` makes them, so many at a time as it is told."""

    calls: int
    run: Callable[[int], object]


def puts(store: Store, calls: int) -> Work:
    """Return work that puts small objects."""
    data = os.urandom(SIZE)
    return _by_threads([partial(store.put, f"put-{number}", data) for number in range(calls)])


def gets(store: Store, calls: int) -> Work:
    """Return work that gets a small object."""
    store.put("get", os.urandom(SIZE))
    return _by_threads([partial(store.get, "get")] * calls)


def heads(store: Store, calls: int) -> Work:
    """Return work that gets an object's size."""
    store.put("get", b"")
    return _by_threads([partial(store.head, "get")] * calls)


def completions(store: Store, calls: int) -> Work:
    """Return work that completes uploads as a job commit does: boto3 in threads, CRT without."""
    pending = list(in_parallel(lambda number: _begun(store, f"done-{number}"), range(calls), 8))
    completions = Completions(store, if_absent=False, verify=False, clock=SystemClock())
    return Work(calls, lambda limit: list(completions.run(pending, limit, limit)))


def _by_threads(calls: Sequence[Callable[[], object]]) -> Work:
    def run(threads: int) -> None:
        if threads == 1:
            for call in calls:
                call()
        else:
            list(in_parallel(lambda call: call(), calls, threads))

    return Work(len(calls), run)


def _begun(store: Store, key: str) -> PendingUpload:
    token = Token(uuid.uuid4().hex)
    upload_id = store.begin_upload(key, token)
    part = store.put_part(key, upload_id, 1, 0, b"0123456789")
    return store.seal_upload(key, upload_id, token, [part])


WORK: Final = {"put 10 KiB": puts, "get 10 KiB": gets, "head": heads, "complete": completions}


def measured(work: Work, at_once: int) -> Spent:
    """Make the calls and return the time per call."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    work.run(at_once)
    each = 1e6 / work.calls
    return Spent((time.process_time() - cpu_s) * each, (time.perf_counter() - wall_s) * each)


def put_in_parts(store: Store, path: Path) -> None:
    """Put a file as an upload of parts, as tasks and blobs do."""
    size, token = path.stat().st_size, Token(uuid.uuid4().hex)
    upload_id = store.begin_upload(path.name, token)
    with path.open("rb") as file:

        def put(number: int) -> Part:
            start = (number - 1) * PART_BYTES
            return store.put_part(
                path.name, upload_id, number, start, os.pread(file.fileno(), PART_BYTES, start)
            )

        parts = list(in_parallel(put, range(1, -(-size // PART_BYTES) + 1), THREADS))
    store.complete_upload(store.seal_upload(path.name, upload_id, token, parts))


def put_by_boto3(store: Store, path: Path) -> None:
    """Put a file by boto3's transfer manager with the same parts and threads."""
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    tuned = TransferConfig(
        multipart_threshold=PART_BYTES,
        multipart_chunksize=PART_BYTES,
        max_concurrency=THREADS,
        preferred_transfer_client="classic",
    )
    client = boto3.client("s3", config=BotoConfig(max_pool_connections=THREADS))
    client.upload_file(str(path), bucket, f"{prefix}/{path.name}", Config=tuned)


LARGE: Final = {"crt": put_in_parts, "boto3": put_by_boto3}


def large_puts(url: str, mib: int, rounds: int) -> dict[str, list[Spent]]:
    """Put a file of this size both ways in turns; the first round is not counted."""
    spent: dict[str, list[Spent]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / f"{mib} MiB"
        with path.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(2**20))
        store = open_store(url, load_settings())
        for number in range(rounds + 1):
            for way in WAYS:
                once = measured(_by_threads([partial(LARGE[way], store, path)]), 1)
                if number:
                    spent[way].append(once)
        store.delete(path.name)
    return spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    url = test_server()
    if url is None:
        sys.exit("no S3 server: run this by scripts.with_servers --s3")
    table = Table(
        "call",
        "at once",
        *(f"{way} {what} µs" for what in ("CPU", "wall") for way in WAYS),
        "CPU ratio",
        "wall ratio",
    )
    for name, work in WORK.items():
        for threads in options.threads:
            spent: dict[str, list[Spent]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way in WAYS:
                    store = open_store(f"{url}/{uuid.uuid4().hex}", load_settings(s3_client=way))
                    measured(work(store, 2 * threads), threads)
                    spent[way].append(measured(work(store, options.calls), threads))
            add_row(table, name, threads, spent)
    for mib in options.mib:
        add_row(
            table, f"put {mib} MiB", THREADS, large_puts(f"{url}/{uuid.uuid4().hex}", mib, options.rounds)
        )
    Console().print(table)


def add_row(table: Table, name: str, threads: int, spent: Mapping[str, Sequence[Spent]]) -> None:
    """Add the medians of both ways."""
    cpu = {way: median(run.cpu_us for run in spent[way]) for way in WAYS}
    wall = {way: median(run.wall_us for run in spent[way]) for way in WAYS}
    times = [f"{time_us:,.0f}" for time_us in (*cpu.values(), *wall.values())]
    ratios = [f"{spent['crt'] / spent['boto3']:.2f}" for spent in (cpu, wall)]
    table.add_row(name, str(threads), *times, *ratios)


if __name__ == "__main__":
    main()
