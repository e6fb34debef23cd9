"""Fail if something has become twice as slow: a few ratios with wide limits, in less than three minutes.

    python -m benchmarks.quick

Each ratio compares the best of several turns of two ways that alternate, so a busy machine passes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.files import flushes, plain_syncs
from benchmarks.peers import commits, writes
from benchmarks.peers.proxy import delaying_proxy
from benchmarks.peers.run import NO_SERVER, Run
from benchmarks.peers.server import GoMissingError, running_server
from benchmarks.s3_calls import WAYS, measured, puts
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store

ROWS: Final = 400_000
COMMITTED_FILES: Final = 200
ROUNDS: Final = 2


class Ratio(NamedTuple):
    """What was measured.

    Attributes:
        what: Name of the ratio.
        ratio: The best turn of Lockgate to the best turn of the other.
        usual: The ratio on 2026-11-26, on two cores at rest.
        limit: Greatest ratio that passes.
    """

    what: str
    ratio: float
    usual: float
    limit: float


def spark_writes(run: Run) -> Iterator[Ratio]:
    """Compare both ways of a write with Spark's own writer, at a local destination."""
    ways = ("spark-v1", "lockgate-spark-local", "lockgate-direct-local")
    result = writes.measure(run, ROWS, 4, "local[2]", ways)
    spark_s, pending_s, direct_s = (min(turn.wall_s for turn in way.turns) for way in result.ways)
    yield Ratio("write by Spark, Spark's own writer", pending_s / spark_s, 0.99, 1.8)
    yield Ratio("direct write, Spark's own writer", direct_s / spark_s, 1.27, 2.5)


def job_commits(run: Run) -> Iterator[Ratio]:
    """Compare a job commit with its completions alone, and with its number of files."""
    taken = commits.turns(run, ("lockgate", "bare-crt"), COMMITTED_FILES, ROUNDS, proxied=False)
    wall_s, bare_s = (min(turn.wall_s for turn in turns) for turns in taken.values())
    yield Ratio("job commit, bare AWS CRT", wall_s / bare_s, 1.58, 3.5)
    (counted,) = commits.turns(run, ("lockgate",), COMMITTED_FILES, 1, proxied=True)["lockgate"]
    requests = sum(counted.requests.values())
    yield Ratio("requests of a job commit, files", requests / COMMITTED_FILES, 1.15, 1.5)


def s3_calls(run: Run) -> Iterator[Ratio]:
    """Compare the CPU time of puts with boto3's."""
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS + 1):
        for way, taken_us in spent.items():
            url = f"s3://{run.known_server().bucket}/{uuid.uuid4().hex}"
            store = open_store(url, load_settings(s3_client=way))
            taken_us.append(measured(puts(store, 200), 16).cpu_us)
    yield Ratio("CPU time of a put of 10 KiB, boto3", min(spent["crt"]) / min(spent["boto3"]), 0.20, 0.6)


def file_flushes(run: Run) -> Iterator[Ratio]:
    """Compare flushes of appendable files with writes and syncs of a plain file."""
    flushed, synced = [], []
    for number in range(ROUNDS):
        flushed.append(flushes(_new(run.folder / f"files-{number}"), 1, 1.0).per_s)
        synced.append(plain_syncs(_new(run.folder / f"plain-{number}"), 1, 1.0).per_s)
    yield Ratio("flush of 1 KiB, write and sync", max(synced) / max(flushed), 1.83, 7.0)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


LOCAL: Final[tuple[Callable[[Run], Iterator[Ratio]], ...]] = (spark_writes, file_flushes)
AT_S3: Final[tuple[Callable[[Run], Iterator[Ratio]], ...]] = (job_commits, s3_calls)


def verdict(ratios: list[Ratio]) -> list[str]:
    """Return a sentence for each ratio above its limit."""
    return [
        f"{one.what}: the ratio is {one.ratio:.2f}, above its limit of {one.limit:.2f} "
        f"(usual: {one.usual:.2f}); measure again on a machine at rest, then find the change"
        for one in ratios
        if one.ratio > one.limit
    ]


def show(ratios: list[Ratio], console: Console) -> None:
    """Print the ratios beside their limits."""
    table = Table("Lockgate's, to", "ratio", "usual", "limit", title=f"best of {ROUNDS} turns")
    for one in ratios:
        table.add_row(one.what, f"{one.ratio:.2f}", f"{one.usual:.2f}", f"{one.limit:.2f}")
    console.print(table)


def main() -> None:
    """Measure, print the ratios, and exit with 1 if one is above its limit."""
    console = Console(stderr=True, width=110)
    ratios: list[Ratio] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockgate-bench-")))
        run = Run(ROUNDS, 0.0, folder, folder / "no-jars", console.print)
        try:
            run.server = stack.enter_context(running_server(folder / "s3-data"))
        except GoMissingError:
            console.print(f"skipped: job commits and S3 calls: {NO_SERVER}")
        else:
            run.proxy = stack.enter_context(delaying_proxy(run.server.endpoint, 0.0))
        os.environ.update(run.environment(proxied=False))
        for measure in (*LOCAL, *(AT_S3 if run.server else ())):
            ratios += measure(run)
    show(ratios, console)
    if slower := verdict(ratios):
        sys.exit("\n".join(slower))


if __name__ == "__main__":
    main()
