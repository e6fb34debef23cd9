"""Compare S3 calls sent by AWS CRT with the same calls of boto3.

    scripts/with-s3-server python -m benchmarks.s3_calls [--calls 300] [--rounds 5] [--threads 1 16]

Both alternate in one process against one server, whose CPU time is not counted. A completion has one part of
ten bytes, which is put before the measurement.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.job_commit import test_server
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.ids import Token
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.protocol import PendingUpload, Store

SIZE: Final = 10 * 2**10
WAYS: Final = ("crt", "boto3")


class Spent(NamedTuple):
    """Time per call, in microseconds."""

    cpu_us: float
    wall_us: float


def puts(store: Store, calls: int) -> list[Callable[[], object]]:
    """Return calls that put small objects."""
    data = os.urandom(SIZE)
    return [lambda number=number: store.put(f"put-{number}", data) for number in range(calls)]  # type: ignore[misc]


def gets(store: Store, calls: int) -> list[Callable[[], object]]:
    """Return calls that get a small object."""
    store.put("get", os.urandom(SIZE))
    return [lambda: store.get("get") for _ in range(calls)]


def heads(store: Store, calls: int) -> list[Callable[[], object]]:
    """Return calls that get an object's size."""
    store.put("get", b"")
    return [lambda: store.head("get") for _ in range(calls)]


def completions(store: Store, calls: int) -> list[Callable[[], object]]:
    """Return calls that complete uploads."""
    pending = list(in_parallel(lambda number: _begun(store, f"done-{number}"), range(calls), 8))
    return [lambda upload=upload: store.complete_upload(upload) for upload in pending]  # type: ignore[misc]


def _begun(store: Store, key: str) -> PendingUpload:
    token = Token(uuid.uuid4().hex)
    upload_id = store.begin_upload(key, token)
    part = store.put_part(key, upload_id, 1, 0, b"0123456789")
    return store.seal_upload(key, upload_id, token, [part])


WORK: Final = {"put 10 KiB": puts, "get 10 KiB": gets, "head": heads, "complete": completions}


def measured(calls: Sequence[Callable[[], object]], threads: int) -> Spent:
    """Make the calls and return the time per call."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    if threads == 1:
        for call in calls:
            call()
    else:
        for _ in in_parallel(lambda call: call(), calls, threads):
            pass
    each = 1e6 / len(calls)
    return Spent((time.process_time() - cpu_s) * each, (time.perf_counter() - wall_s) * each)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    url = test_server()
    if url is None:
        sys.exit("no S3 server: run this by scripts/with-s3-server")
    table = Table(
        "call", "threads", *(f"{way} {what} µs" for what in ("CPU", "wall") for way in WAYS), "CPU ratio"
    )
    for name, work in WORK.items():
        for threads in options.threads:
            spent: dict[str, list[Spent]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way in WAYS:
                    store = open_store(
                        f"{url}/{uuid.uuid4().hex}", load_settings().model_copy(update={"s3_client": way})
                    )
                    measured(work(store, 2 * threads), threads)
                    spent[way].append(measured(work(store, options.calls), threads))
            cpu = {way: median(run.cpu_us for run in spent[way]) for way in WAYS}
            wall = {way: median(run.wall_us for run in spent[way]) for way in WAYS}
            times = [f"{time_us:,.0f}" for time_us in (*cpu.values(), *wall.values())]
            table.add_row(name, str(threads), *times, f"{cpu['crt'] / cpu['boto3']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
