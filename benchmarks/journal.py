"""Measure a journal's mutations, renewals and reads a second, and the lag of its observers.

    python -m benchmarks.journal [--seconds 3] [--sync-us 1000] [--part writes …] [--database postgresql …]

Starts a PostgreSQL server that syncs its log, and standbys of it; without PostgreSQL only SQLite is measured.
A mutation is the record of a task commit, the most frequent one of a job. Every load runs in a new process.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import psycopg
from msgspec import structs
from rich.console import Console
from rich.table import Table

from benchmarks.journal_load import READS_A_WRITE, Load, begun, record, run_together
from lockgate.storage_core.journal import Written, open_journal
from lockgate.storage_core.journal.observers.process_reader import open_observer
from lockgate.storage_core.journal.observers.reading_client import Client
from tests.support.postgres import UNSYNCED, Server, postgres_bin, primary

KINDS = ("sqlite", "postgresql")
PARTS = ("writes", "snapshot", "renewals", "lag", "reads")
CALLS = [(1, 1), (1, 64), (16, 1), (64, 1), (256, 1), (512, 1), (64, 16)]
"""Mutations per call, and calling threads."""

WRITES = (
    "a call",
    "threads",
    "mutations",
    "commits",
    "plain",
    "numbered",
    "client us",
    "server us",
    "to plain",
    "to numbered",
    "to first",
)
"""Headings: rates a second, CPU time per mutation, ratios of mutations a second."""

HOLDERS = [(1, 1), (1, 1000), (16, 10), (16, 100)]
"""Number of holders, each with its own thread, and the leases of each."""

ROUNDS = 3
"""Rounds of each write measurement, of which the median is shown, because the machine may be busy."""

BESIDE_A_SNAPSHOT = 2000
"""Writes beside one open snapshot, which keeps every version of the head's row."""

_TABLES = (
    "CREATE TABLE plain (id INTEGER PRIMARY KEY, op TEXT NOT NULL, payload TEXT NOT NULL)",
    "CREATE TABLE numbers (journal TEXT PRIMARY KEY, sequence INTEGER NOT NULL)",
    "INSERT INTO numbers VALUES ('main', 0)",
)
_NEXT = "UPDATE numbers SET sequence = sequence + 1 WHERE journal = 'main' RETURNING sequence"
_INSERT = "INSERT INTO plain VALUES ({0}, {0}, {0})"
_PAYLOAD = "x" * 250
_numbers = count(1)


class Databases:
    """Creates databases in a directory, and on a server if there is one."""

    def __init__(self, root: Path, server: Server | None, kinds: Sequence[str]) -> None:
        self.root = root
        self.server = server
        self.kinds = kinds
        self.kinds_with_observers = [kind for kind in kinds if kind == "postgresql"]

    def new_url(self, kind: str) -> str:
        """Return the URL of a new database."""
        number = next(_numbers)
        if kind == "postgresql" and self.server is not None:
            return self.server.new_database(f"bench_{number}")
        return f"sqlite:///{self.root}/journal-{number}.db"

    def server_cpu_s(self, url: str) -> float:
        """Return the CPU time of the server's ended sessions, after those of a database have ended."""
        if self.server is None or url.startswith("sqlite"):
            return 0.0
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{url.rpartition('/')[2]}'"
        while self.server.run_sql(sessions) != "0":
            time.sleep(0.01)
        pid = (self.server.root / "data" / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        return sum(map(int, children)) / os.sysconf("SC_CLK_TCK")


def one_insert_a_transaction(url: str, seconds: float, *, is_numbered: bool = False) -> float:
    """Insert and commit one row after the other by the plain driver, and return rows a second.

    Args:
        url: URL of a new database.
        seconds: Duration.
        is_numbered: First take the row's number from another row, which locks it: the minimum for entries
            without gaps.
    """
    insert = _INSERT.format("?" if url.startswith("sqlite") else "%s")
    with _plain(url) as connection:
        began_s, rows = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            number = connection.execute(_NEXT).fetchall()[0][0] if is_numbered else rows
            connection.execute(insert, (number, "record-task", _PAYLOAD))
            connection.commit()
            rows += 1
        return rows / (time.perf_counter() - began_s)


@contextmanager
def _plain(url: str) -> Iterator[sqlite3.Connection | psycopg.Connection]:
    if url.startswith("sqlite"):
        connection: sqlite3.Connection | psycopg.Connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    else:
        connection = psycopg.connect(url)
    try:
        for statement in _TABLES:
            connection.execute(statement)
        connection.commit()
        yield connection
    finally:
        connection.close()


class Writes(NamedTuple):
    """Results of one measurement of writes.

    Attributes:
        mutations: Mutations a second.
        transactions: Transactions a second.
        plain: Inserts a second of the plain loop, run just before.
        numbered: The same with a number from a locked row.
        client_us: CPU time of the writing process per mutation.
        server_us: CPU time of PostgreSQL per mutation.
    """

    mutations: float
    transactions: float
    plain: float
    numbered: float
    client_us: float
    server_us: float


def measure_writes(databases: Databases, kind: str, load: Load) -> Writes:
    """Measure the plain loops for a quarter of the time each, then a load."""
    plain, numbered = (
        one_insert_a_transaction(databases.new_url(kind), load.seconds / 4, is_numbered=is_numbered)
        for is_numbered in (False, True)
    )
    url = databases.new_url(kind)
    open_journal(url).close()
    spent_s = databases.server_cpu_s(url)
    (done,) = run_together([msgspec.structs.replace(load, url=url)])
    spent_s = databases.server_cpu_s(url) - spent_s
    return Writes(
        mutations=done.items / done.seconds,
        transactions=_transactions(url) / done.seconds,
        plain=plain,
        numbered=numbered,
        client_us=done.cpu_s / done.items * 1e6,
        server_us=spent_s / done.items * 1e6,
    )


def show_writes(databases: Databases, seconds: float, console: Console) -> None:
    """Compare writes with two plain loops, and with one mutation per transaction of the same journal.

    The gain of a group depends on the duration of a disk sync, for which every transaction waits.
    """
    for kind in databases.kinds:
        table = _table(f"Writes a second on {kind}, one process, and what one costs", WRITES)
        alone = 0.0
        for size, threads in CALLS:
            load = Load(step="write", url="", seconds=seconds, threads=threads, size=size)
            rounds = [measure_writes(databases, kind, load) for _ in range(ROUNDS)]
            middle = Writes(*(median(figures) for figures in zip(*rounds, strict=True)))
            alone = alone or middle.mutations
            ratios = (
                median(writes.mutations / writes.plain for writes in rounds),
                median(writes.mutations / writes.numbered for writes in rounds),
                middle.mutations / alone,
            )
            figures = (size, threads, *middle)
            table.add_row(*(f"{figure:,.0f}" for figure in figures), *(f"{ratio:.1f}" for ratio in ratios))
        console.print(table)


def _transactions(url: str) -> int:
    """Count a journal's write transactions; the entries of one have the same time."""
    with open_journal(url) as journal, journal.reading() as reading:
        result = reading.connection.exec_driver_sql("SELECT count(DISTINCT at_s) FROM entry")
        return int(result.scalar_one())


def show_snapshot(databases: Databases, seconds: float, console: Console) -> None:  # noqa: ARG001
    """Measure what finding the head costs PostgreSQL after writes beside an open snapshot."""
    headings = ("snapshot", "buffers before", "after", "first us a write", "last us")
    table = _table(f"{BESIDE_A_SNAPSHOT:,} writes one by one on PostgreSQL, beside a snapshot", headings)
    if "postgresql" not in databases.kinds:
        return
    for is_open in (False, True):
        url = databases.new_url("postgresql")
        with open_journal(url) as journal, psycopg.connect(url) as beside, psycopg.connect(url) as other:
            other.autocommit = True
            beside.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            before = _buffers_of_head(other)
            if is_open:
                beside.execute("SELECT * FROM head")
            took_s = list[float]()
            for number in range(BESIDE_A_SNAPSHOT):
                began_s = time.perf_counter()
                journal.write([record("beside", number)])
                took_s.append(time.perf_counter() - began_s)
            tenth = BESIDE_A_SNAPSHOT // 10
            table.add_row(
                "open" if is_open else "none",
                str(before),
                str(_buffers_of_head(other)),
                *(f"{median(part) * 1e6:,.0f}" for part in (took_s[:tenth], took_s[-tenth:])),
            )
    console.print(table)


def _buffers_of_head(connection: psycopg.Connection) -> int:
    """Return how many buffers PostgreSQL reads to find the head by its key."""
    connection.execute("SET enable_seqscan = off")
    question = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM head WHERE journal = 'main'"
    row = connection.execute(question).fetchone()
    plan = row[0][0]["Plan"] if row else {}
    return int(plan.get("Shared Hit Blocks", 0)) + int(plan.get("Shared Read Blocks", 0))


def show_renewals(databases: Databases, seconds: float, console: Console) -> None:
    """Measure lease renewals."""
    table = _table(
        "Lease renewals a second, one process",
        ("database", "holders", "leases of each", "calls/s", "leases/s"),
    )
    for kind in databases.kinds:
        for holders, leases in HOLDERS:
            url = databases.new_url(kind)
            load = Load(step="renew", url=url, seconds=seconds, threads=holders, size=leases)
            (done,) = run_together([load])
            table.add_row(
                kind,
                str(holders),
                str(leases),
                f"{done.calls / done.seconds:,.0f}",
                f"{done.items / done.seconds:,.0f}",
            )
    console.print(table)


def show_lag(databases: Databases, seconds: float, console: Console) -> None:
    """Measure the time from the primary's answer until a read at an observer has the entry."""
    table = _table(
        "Observer lag: from the primary's answer until a read has the entry",
        ("observer", "load: threads", "a call", "mutations/s", "samples", "p50 ms", "p99 ms"),
    )
    for kind in databases.kinds_with_observers:
        for threads, size in ((0, 0), (4, 1), (4, 16)):
            url = databases.new_url(kind)
            open_journal(url).close()
            with _observers(databases, url, 1) as (observer,):
                loads = [Load(step="write", url=url, seconds=seconds, threads=threads, size=size)]
                with begun(loads if threads else []) as processes:
                    lags = sorted(_lags(url, observer, seconds * 0.9))
                    done = [process.result() for process in processes]
            rate = sum(one.items / one.seconds for one in done)
            table.add_row(
                "hot standby",
                str(threads),
                str(size),
                f"{rate:,.0f}",
                f"{len(lags):,}",
                *(f"{lags[int(len(lags) * part)] * 1000:.1f}" for part in (0.5, 0.99)),
            )
    console.print(table)


def _lags(url: str, observer: str, seconds: float) -> Iterator[float]:
    """Write task commits and yield how long a client waits for each at an observer."""
    began_s = time.perf_counter()
    with (
        open_journal(url) as journal,
        Client(journal, [open_observer(observer, journal)], wait_ms=60_000) as client,
    ):
        for number in count():
            if time.perf_counter() - began_s > seconds:
                return
            (written,) = journal.write([record("probe", number)])
            answered_s = time.perf_counter()
            if isinstance(written, Written):
                if client.read(lambda reading: reading.database) is journal.database:
                    raise RuntimeError(f"observer {observer} was not read: {client.observers()}")
                yield time.perf_counter() - answered_s


def show_reads(databases: Databases, seconds: float, console: Console) -> None:
    """Measure reads at 95 % reads with 0 to 3 observers, the primary's part of them, and the lag beside them.

    Each process first reads what another one has told it of: a read without that row was of a past state.
    """
    table = _table(
        f"Reads a second at 1 write to {READS_A_WRITE} reads, four processes",
        (
            "observers",
            "reads/s",
            "writes/s",
            "primary us a read",
            "fallbacks",
            "past states",
            "lag p50 ms",
            "p99",
        ),
    )
    for kind in databases.kinds_with_observers:
        for observers in range(4):
            url = databases.new_url(kind)
            open_journal(url).close()
            with _observers(databases, url, observers) as urls:
                board = str(databases.root / f"board-{observers}")
                load = Load(step="read", url=url, seconds=seconds, observers=tuple(urls), board=board)
                spent_s = databases.server_cpu_s(url)
                with begun([structs.replace(load, name=f"p{number}") for number in range(4)]) as processes:
                    lags = sorted(_lags(url, urls[0], seconds * 0.9)) if urls else []
                    done = [process.result() for process in processes]
                spent_s = databases.server_cpu_s(url) - spent_s
            reads = READS_A_WRITE * sum(one.calls for one in done)
            table.add_row(
                str(observers),
                f"{sum(READS_A_WRITE * one.calls / one.seconds for one in done):,.0f}",
                f"{sum(one.calls / one.seconds for one in done):,.0f}",
                f"{spent_s / reads * 1e6:,.0f}",
                f"{sum(one.fallbacks for one in done):,.0f}",
                str(reads - sum(one.items for one in done)),
                *(f"{lags[int(len(lags) * part)] * 1000:.1f}" if lags else "" for part in (0.5, 0.99)),
            )
    console.print(table)


@contextmanager
def _observers(databases: Databases, url: str, observers: int) -> Iterator[list[str]]:
    """Start hot standbys of a journal and yield their URLs."""
    with ExitStack() as stack:
        urls: list[str] = []
        if databases.server is not None:
            for _ in range(observers):
                standby = databases.server.new_standby(databases.root / f"standby-{next(_numbers)}")
                stack.callback(standby.stop, "immediate")
                urls.append(standby.url_of(url.rpartition("/")[2]))
            yield urls


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"database", "observer"} else "right")
    return table


def describe(databases: Databases) -> str:
    """Return the machine, its load, and the versions of the databases."""
    versions = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    if databases.server is not None:
        versions.append(f"PostgreSQL {databases.server.run_sql('SHOW server_version')}")
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{os.cpu_count()} cores, {platform.platform()}; {', '.join(versions)}; load before: {load}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--sync-us", type=int, default=0, help="PostgreSQL's delay at every commit")
    parser.add_argument(
        "--unsynced", action="store_true", help="PostgreSQL syncs nothing: the processor limits"
    )
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--database", action="append", choices=KINDS)
    options = parser.parse_args()
    shown = {
        "writes": show_writes,
        "snapshot": show_snapshot,
        "renewals": show_renewals,
        "lag": show_lag,
        "reads": show_reads,
    }
    console = Console(width=125)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockgate-bench-")))
        waits = {"commit_delay": str(options.sync_us), "commit_siblings": "0"}
        waits |= UNSYNCED if options.unsynced else {}
        server = stack.enter_context(primary(root / "primary", **waits)) if postgres_bin() else None
        kinds = [kind for kind in options.database or KINDS if server is not None or kind == "sqlite"]
        databases = Databases(root, server, kinds)
        console.print(describe(databases))
        for part in options.part or PARTS:
            shown[part](databases, options.seconds, console)


if __name__ == "__main__":
    main()
