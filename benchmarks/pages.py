"""Measure every page and API route with many jobs, against the same with 100 jobs.

    python -m benchmarks.pages [--jobs 1000000] [--files 100000] [--rounds 20]
                               [--database sqlite postgresql] [--keep DIR] [--only-make]

The registry of 100 jobs comes with jobs of 1,000 files, which one shard of a plan or report has.

A request goes to the application in this process, and ends with its last byte. Requests with 100 jobs and
with many take turns. `--keep` makes the registries in a folder once, and uses them again.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from fastapi.testclient import TestClient
from rich.console import Console
from rich.table import Table

from benchmarks.pages_files import make_in_process, one_task, planned, reported, resident_bytes
from benchmarks.pages_registry import DESTINATIONS, FEW, job_of, place_of, write_registry
from lockgate.plugins.web.access import Host
from lockgate.plugins.web.answers import DEFAULT_LIMIT, Key, cursor
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.postgres import Server, free_port, postgres_bin, primary

API: Final = "/api/v1"
MAKERS: Final = {"pending": one_task, "plan": planned, "report": reported}
JOB_ID: Final = "bench-g1"
GOAL_MS: Final = 300
GOAL_RATIO: Final = 1.5


class Ask(NamedTuple):
    """One request.

    Attributes:
        where: `first`, `middle` or `last` page; empty if there is one page.
        of: Kind of the records of the job or destination that it names.
    """

    path: str
    query: Mapping[str, str] = {}
    where: str = ""
    of: str = ""

    @property
    def name(self) -> str:
        """The request in a table."""
        hidden = {"after", "dag_id", "run_id", "job", *(("destination",) if self.of else ())}
        query = {name: value.rpartition("/")[2] for name, value in self.query.items() if name not in hidden}
        shown = "&".join(f"{name}={value}" for name, value in query.items())
        return " ".join(filter(None, [f"{self.path}?{shown}" if shown else self.path, self.of]))


class Registry(NamedTuple):
    """A registry with its application.

    Attributes:
        jobs: Number of jobs by bulk entries.
        files: Number of files of each job with records in a store.
        root: Folder of the home, the stores and, with SQLite, the database.
    """

    jobs: int
    files: int
    root: Path
    url: str

    @property
    def settings(self) -> Settings:
        """Settings of its application."""
        return load_settings(home=self.root / "home", journal_url=self.url)

    def destination(self, kind: str) -> str:
        """Return the URL of the destination of the job with records of a kind."""
        return (self.root / kind).as_uri()

    @contextmanager
    def client(self) -> Iterator[TestClient]:
        """Yield a client of its application."""
        host = Host(may_read=lambda: None, may_act={}, offers=lambda _: frozenset(), user=lambda _: "bench")
        with TestClient(web_app(host, Reads(self.settings))) as client:
            yield client

    def make(self) -> None:
        """Write the entries and the records, unless an earlier run has."""
        done = self.root / "made"
        if done.exists():
            return
        began_s = time.perf_counter()
        with open_journal(self.url) as journal:
            write_registry(journal, self.jobs)
        took_s = time.perf_counter() - began_s
        print(f"{self.jobs:,} jobs in {took_s:.1f} s: {self.jobs / took_s:,.0f} entries/s", flush=True)
        for kind, make in MAKERS.items():
            make_in_process(self.destination(kind), self.settings, self.files, make)
        done.touch()


def asks(registry: Registry) -> list[Ask]:
    """Return a request for each route, filter and order; of long lists for three pages."""
    last = registry.jobs - 1
    place = place_of(0)
    jobs = partial(_pages, f"{API}/jobs", last=last)
    found = [
        *jobs("jobs-newest", {}),
        *jobs("jobs-oldest", {"sort": "oldest"}),
        *jobs("jobs-name", {"sort": "name"}),
        *jobs("jobs-newest", {"phase": "committed"}),
        *jobs("jobs-newest", {"phase": "failed"}),
        *jobs("jobs-newest", {"needs": "nothing"}),
        *jobs("jobs-newest", {"destination": place}),
        *jobs("jobs-oldest", {"destination": place, "sort": "oldest", "phase": "committed"}),
        *jobs("jobs-name", {"search": "sales"}),
    ]
    plain: list[dict[str, str]] = [
        {"phase": "open"},
        {"phase": "committing"},
        {"phase": "aborting"},
        {"needs": "you"},
        {"needs": "wait"},
        {"needs": "you", "destination": place},
        {"search": job_of(last // 2).name},
        {"search": "nothing-has-this-name"},
        {"search": "sales", "destination": place},
        {"sort": "name", "phase": "failed"},
        {"sort": "name", "needs": "you"},
    ]
    found += (Ask(f"{API}/jobs", query) for query in plain)
    job = job_of(last // 2)
    run = {"dag_id": job.dag_id or "", "run_id": job.run_id or ""}
    task = {**run, "task_id": job.task_id or "", "map_index": "-1"}
    found += [Ask(f"{API}/jobs/counts"), Ask(f"{API}/runs", run), Ask(f"{API}/runs", task)]
    found += [
        Ask(f"{API}/charts/{name}", query)
        for name in ("commit-time", "rows", "bytes")
        for query in ({}, {"days": "90"}, {"destination": place})
    ]
    found.append(Ask(f"{API}/charts/live-files", {"destination": registry.destination("report")}))
    found += [
        *(Ask(f"{API}/destinations", {"after": after}, where) for where, after in _destination_cursors()),
        Ask(f"{API}/jobs/{job.job_id}", {"destination": job.destination}, of="without a store"),
        Ask(f"{API}/journal"),
        Ask(f"{API}/journal/observers"),
        Ask(f"{API}/journal/checkpoints"),
        Ask(f"{API}/blobs/jobs"),
        Ask("/jobs"),
        Ask("/jobs", {"after": cursor("jobs-newest", _by_time(last // 2))}, "middle"),
        Ask("/jobs", {"needs": "you"}),
        Ask("/run", run),
        Ask("/destinations"),
        Ask("/uploads"),
        Ask("/blobs"),
        Ask("/journal"),
    ]
    for kind in MAKERS:
        where = {"destination": registry.destination(kind)}
        paths = [f"{API}/jobs/{JOB_ID}{part}" for part in ("", "/attempts", "/files", "/log")]
        paths += [f"{API}/jobs/{JOB_ID}/plan"] if kind != "pending" else []
        found += (Ask(path, where, of=kind) for path in paths)
        found.append(Ask("/job", {"job": JOB_ID, **where}, of=kind))
    where = {"destination": registry.destination("report")}
    found += [
        Ask(path, where, of="report")
        for path in (
            f"{API}/destinations/detail",
            f"{API}/destinations/log",
            f"{API}/uploads",
            f"{API}/uploads/owners",
            "/destination",
            "/uploads",
        )
    ]
    return found


def _pages(path: str, name: str, query: dict[str, str], *, last: int) -> Iterator[Ask]:
    """Yield requests for the first, a middle and the last page of a list of jobs."""
    key_of = _by_name if name == "jobs-name" else _by_time
    numbers = [last // 2, min(DEFAULT_LIMIT, last)]
    if name != "jobs-newest":
        numbers[1] = max(0, last - DEFAULT_LIMIT)
    yield Ask(path, query, "first")
    for where, number in zip(("middle", "last"), numbers, strict=True):
        yield Ask(path, {**query, "after": cursor(name, key_of(number))}, where)


def _by_time(number: int) -> Key:
    job = job_of(number)
    return job.set_up_s, job.destination, job.job_id


def _by_name(number: int) -> Key:
    job = job_of(number)
    return job.name, job.destination, job.job_id


def _destination_cursors() -> Iterator[tuple[str, str]]:
    yield "first", ""
    yield "middle", cursor("destinations", (False, place_of(DESTINATIONS // 2)))
    yield "last", cursor("destinations", (False, place_of(DESTINATIONS - 2)))


def measure(few: Registry, many: Registry, rounds: int) -> Iterator[list[str]]:
    """Yield the figures of each request."""
    with few.client() as small, many.client() as large:
        for of_few, of_many in zip(asks(few), asks(many), strict=True):
            pair = ((small, of_few), (large, of_many))
            for client, one in pair:
                timed(client, one)
                timed(client, one)
            Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on
            before = resident_bytes()
            took: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for (client, one), times in zip(pair, took, strict=True):
                    times.append(timed(client, one))
            yield [
                of_many.name,
                of_many.where,
                *itertools.chain.from_iterable(_figures(times) for times in took),
                f"{statistics.median(took[1]) / statistics.median(took[0]):.2f}",
                f"{(resident_bytes() - before) / 2**20:.1f}",
            ]


def timed(client: TestClient, ask: Ask) -> float:
    """Return the milliseconds of a request.

    Raises:
        HTTPStatusError: It was not answered with 200.
    """
    began_s = time.perf_counter()
    answer = client.get(ask.path, params=dict(ask.query))
    took_ms = 1000 * (time.perf_counter() - began_s)
    answer.raise_for_status()
    return took_ms


def _figures(times: Sequence[float]) -> list[str]:
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
    return [f"{statistics.median(times):.1f}", f"{p95:.1f}"]


@contextmanager
def database(kind: str, root: Path) -> Iterator[dict[int, str]]:
    """Yield the URL of a journal for each number of jobs; it is made at the first use."""
    root.mkdir(parents=True, exist_ok=True)
    if kind == "sqlite":
        yield _Urls(lambda jobs: f"sqlite:///{root}/journal-{jobs}.db")
        return
    with _server(root / "server") as server:

        def url(jobs: int) -> str:
            name = f"jobs_{jobs}"
            if not server.run_sql(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
                server.new_database(name)
            return server.url_of(name)

        yield _Urls(url)
        server.run_sql("CHECKPOINT")


class _Urls(dict[int, str]):
    def __init__(self, of: Callable[[int], str]) -> None:
        self._of = of

    def __missing__(self, jobs: int) -> str:
        return self.setdefault(jobs, self._of(jobs))


@contextmanager
def _server(root: Path) -> Iterator[Server]:
    """Yield a PostgreSQL server, the one of an earlier run if the folder has it."""
    if not (root / "data").exists():
        with primary(root, fsync="off", **{"lockgate.may_lose_entries": "on"}) as server:
            yield server
        return
    server = Server(root, free_port(), {"fsync": "off", "lockgate.may_lose_entries": "on"})
    server.start()
    try:
        yield server
    finally:
        server.stop()


def main() -> None:
    """Parse the arguments, make the registries and print a table for each database."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only-make", action="store_true")
    chosen = parser.parse_args()
    for kind in chosen.database:
        if kind == "postgresql" and postgres_bin() is None:
            continue
        with ExitStack() as stack:
            root = chosen.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            root.chmod(0o755)
            urls = stack.enter_context(database(kind, root / kind))
            sizes = ((FEW, SHARD_ENTRIES), (chosen.jobs, chosen.files))
            few, many = (Registry(jobs, files, root / kind / str(jobs), urls[jobs]) for jobs, files in sizes)
            print(f"{kind}:", flush=True)
            for registry in (few, many):
                registry.root.mkdir(exist_ok=True)
                registry.make()
            if not chosen.only_make:
                print_table(few, many, chosen.rounds)


def print_table(few: Registry, many: Registry, rounds: int) -> None:
    """Print the table of one database, and which requests miss the goal."""
    sizes = [f"{registry.jobs:,}" for registry in (few, many)]
    times = [f"{size}: {figure} ms" for size in sizes for figure in ("p50", "p95")]
    table = Table("request", "page", *times, "ratio", "grown MiB")
    rows = list(measure(few, many, rounds))
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)
    slow = [" ".join(row[:2]).strip() for row in rows if float(row[5]) >= GOAL_MS]
    grown = [" ".join(row[:2]).strip() for row in rows if float(row[6]) > GOAL_RATIO]
    print(f"p95 of {GOAL_MS} ms or more: {len(slow)} of {len(rows)} requests: {', '.join(slow) or 'none'}")
    print(
        f"p50 more than {GOAL_RATIO} times that with {few.jobs} jobs: {', '.join(grown) or 'none'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
