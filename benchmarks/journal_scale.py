"""Measure calls that must not become slower while a journal grows.

    python -m benchmarks.journal_scale [--entries 1000000] [--leases 100000] [--database sqlite postgresql]

Half of the entries register jobs and end them, half record task commits. Each call is measured once.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path

import psycopg

from benchmarks.journal_load import record
from lockgate.storage_core.cli.job_index import read_page, read_pages
from lockgate.storage_core.commit.recovery.expired_jobs import expired_jobs
from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.journal import Journal, Leases, LeaseState, Mutation, Refused, open_journal
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints, take_checkpoint
from lockgate.storage_core.journal.checkpoint.prune import prune
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.read.snapshot_read import count_leases
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.journal.status import overview
from lockgate.storage_core.journal.write.head import SafeReason, enter_safe_mode
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from tests.support.postgres import postgres_bin, primary

GROUP = 512
COMMAND = """
import sys
from lockgate.storage_core.cli.root_command import main
sys.argv[0] = "lockgate"
try:
    main()
finally:
    print(*(line.split()[1] for line in open("/proc/self/status") if "VmHWM" in line), file=sys.stderr)
"""


def entries(number: int) -> Iterator[Mutation]:
    """Yield the mutations of jobs, each with its registration, its end and two task commits."""
    for job in range(number // 4):
        for phase in ("open", "committed"):
            yield Mutation(
                op=RecordJob(
                    destination=f"s3://lake/table-{job % 100}",
                    job_id=f"job{job:08d}-g1",
                    name=f"job{job:08d}",
                    short_id="abcdefghij",
                    committer="magic",
                    mode="append",
                    phase=phase,  # type: ignore[arg-type]
                    job_attempt="a1",
                    set_up_s=1.0,
                )
            )
        yield record(f"job{job}", 0)
        yield record(f"job{job}", 1)


def write_all(journal: Journal, mutations: Iterable[Mutation]) -> None:
    """Write mutations in groups."""
    rest = iter(mutations)
    while group := list(islice(rest, GROUP)):
        for outcome in journal.write(group):
            if isinstance(outcome, Refused):
                raise outcome.error


def measure(name: str, call: Callable[[], object]) -> None:
    """Print how long a call takes, and the processor time of this process."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = call()
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    print(f"{name:<58} {took_s:9.3f} s  CPU {cpu_s:8.3f} s  {found}", flush=True)


def run_command(url: str, *words: str) -> str:
    """Run `lockgate` in a process of its own; return the size of its output and its peak memory."""
    run = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LOCKGATE_JOURNAL_URL": url},
    )
    assert run.stdout is not None
    assert run.stderr is not None
    printed = sum(len(part) for part in iter(lambda: run.stdout.read(2**20), b""))  # type: ignore[union-attr]
    peak_kib = int(run.stderr.read().split()[-1])
    return f"{printed:,} bytes, peak {peak_kib // 1024} MiB, exit {run.wait()}"


def size_of(url: str) -> str:
    """Return the size of a journal's database on disk."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        size = sum(Path(path + end).stat().st_size for end in ("", "-wal") if Path(path + end).exists())
    else:
        with psycopg.connect(url) as connection:
            size = connection.execute("SELECT pg_database_size(current_database())").fetchone()[0]  # type: ignore[index]
    return f"{size / 2**20:,.0f} MiB"


def vacuum(url: str) -> str:
    """Give the space of pruned entries back, as the guide says; return the size after it."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute("VACUUM")
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM FULL entry, request")
    return size_of(url)


def run(url: str, root: Path, number: int, leases: int) -> None:
    """Fill a journal and measure calls to it."""
    settings = load_settings(home=root / "home", journal_url=url)
    checkpoints = Checkpoints(open_store(str(root / "checkpoints")), "main")
    with open_journal(url) as journal, Client(journal, [], wait_ms=0) as client:
        measure(f"write {number:,} entries", lambda: write_all(journal, entries(number)))
        with journal.reading() as reading:
            measure("jobs list: the first page of 1,000", lambda: len(read_page(reading).jobs))
            middle = ("s3://lake/table-50", "job")
            measure("jobs list: a page in the middle", lambda: len(read_page(reading, middle).jobs))
            measure("journal status", lambda: overview(reading, checkpoints).entries)
            measure("metrics scrape", lambda: count_leases(reading)[LeaseState.HELD])
        measure(
            "jobs list --json: all pages",
            lambda: sum(len(page.jobs) for page in read_pages(client, None, None)),
        )
        for words in (
            ["jobs", "list"],
            ["jobs", "list", "--json"],
            ["journal", "status"],
        ):
            measure(f"lockgate {' '.join(words)}", partial(run_command, url, *words))
        measure("recovery: find lapsed jobs", lambda: len(expired_jobs(settings).expired))
        held = {}
        for first in range(0, leases, GROUP):
            names = [f"file:{number:08d}" for number in range(first, min(first + GROUP, leases))]
            ops = [
                TakeLease(resource=name, holder="h", purpose="write", soft_s=600, hard_s=1200)
                for name in names
            ]
            outcomes = journal.write([Mutation(op=op) for op in ops])
            held.update({name: outcome.stamp for name, outcome in zip(names, outcomes, strict=True)})
        for _ in range(2):
            measure(f"renew {leases:,} leases of one holder", lambda: Leases(journal).renew("h", held))
        measure("recovery beside these leases", lambda: len(expired_jobs(settings).expired))
        with journal.reading() as reading:
            measure("metrics scrape beside these leases", lambda: count_leases(reading)[LeaseState.HELD])
        with maintenance(journal, "safe") as (connection, head):
            enter_safe_mode(connection, journal.name, SafeReason.OPERATOR, "measured", head.now_s)
        measure("leave safe mode beside these leases", lambda: leave_safe_mode(journal))

        measure("checkpoint", lambda: _checkpoint(journal, checkpoints))
        measure("verify", lambda: _verify(journal, checkpoints))
        print(f"size before the prune: {size_of(url)}", flush=True)
        measure("prune", lambda: prune(journal, checkpoints, kept=1, request_retention_s=0).entries)
        measure("status after the prune", lambda: _status(journal, checkpoints))
        print(f"size after the prune: {size_of(url)}", flush=True)
    measure("vacuum", lambda: vacuum(url))


def _checkpoint(journal: Journal, checkpoints: Checkpoints) -> str:
    with journal.reading() as reading:
        return f"{take_checkpoint(reading, checkpoints)[0].size:,} bytes"


def _verify(journal: Journal, checkpoints: Checkpoints) -> object:
    with journal.reading() as reading:
        return verify(reading, checkpoints).findings


def _status(journal: Journal, checkpoints: Checkpoints) -> int:
    with journal.reading() as reading:
        return overview(reading, checkpoints).entries


def main() -> None:
    """Parse the arguments and measure each database."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"])
    chosen = parser.parse_args()
    for kind in chosen.database:
        with ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = f"sqlite:///{root}/journal.db"
            if kind == "postgresql":
                if postgres_bin() is None:
                    continue
                url = stack.enter_context(primary(root / "server", fsync=True)).new_database("bench")
            os.environ["LOCKGATE_HOME"] = str(root / "home")
            print(f"{kind}:", flush=True)
            run(url, root, chosen.entries, chosen.leases)


if __name__ == "__main__":
    main()
