"""A Parquet table in a destination, and a process that reads it continuously by the destination's log."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.destination.manifest import read_live
from lockgate.storage_core.settings import load_settings
from tests.support.processes.drivers import PROCESSES

DAYS: Final = 3
FILES_A_DAY: Final = 3
ROWS_A_FILE: Final = 2_000
TIMEOUT_S: Final = 60.0

Row = tuple[int, int, str]


class Seen(NamedTuple):
    """One read of the whole table.

    Attributes:
        by: Engine of the read.
        digest: Digest of all its rows.
        retries: Number of restarts because a file was deleted after the manifest was read.
        catch_ups: Number of catch-up requests before the start of this read.
    """

    by: str
    catch_ups: int
    digest: str
    retries: int


def rows_of(version: str) -> list[Row]:
    """Return the rows that one version of the table has: every value differs from any other version's."""
    numbers = range(DAYS * FILES_A_DAY * ROWS_A_FILE)
    return [(number % DAYS, number, f"{version} {number}") for number in numbers]


def files_of(version: str) -> dict[str, bytes]:
    """Return a version of the table as Parquet files by day, with their paths."""
    rows = rows_of(version)
    found = {}
    for day in range(DAYS):
        of_day = [row for row in rows if row[0] == day]
        for part in range(FILES_A_DAY):
            chosen = of_day[part::FILES_A_DAY]
            table = pa.table({"id": [row[1] for row in chosen], "value": [row[2] for row in chosen]})
            buffer = io.BytesIO()
            pq.write_table(table, buffer)
            found[f"day={day}/part-{part}.parquet"] = buffer.getvalue()
    return found


def digest_of(rows: Iterable[Row]) -> str:
    """Return a digest of rows in any order."""
    digest = hashlib.sha256()
    for row in sorted(rows):
        digest.update(repr(row).encode())
    return digest.hexdigest()


class Reader:
    """A process that reads the whole table repeatedly and reports each read."""

    def __init__(self, url: str) -> None:
        self._stop = PROCESSES.Event()
        self._catch_ups = PROCESSES.Value("i", 0)
        self._reads: Queue[Seen] = PROCESSES.Queue()
        self._process = PROCESSES.Process(
            target=_read_on, args=(url, self._reads, self._catch_ups, self._stop), daemon=True
        )
        self.seen: list[Seen] = []

    def catch_up(self) -> set[str]:
        """Wait for a new read of every engine, and return the digests of reads started since this call."""
        self._catch_ups.value += 1
        since: list[Seen] = []
        while {seen.by for seen in since} != set(ENGINES):
            seen = self._reads.get(timeout=TIMEOUT_S)
            self.seen.append(seen)
            since += [seen] if seen.catch_ups == self._catch_ups.value else []
        return {seen.digest for seen in since}

    @property
    def is_alive(self) -> bool:
        """Whether it still reads."""
        return self._process.is_alive()


@contextmanager
def reading(url: str) -> Iterator[Reader]:
    """Read the table at a destination continuously."""
    reader = Reader(url)
    reader._process.start()
    try:
        yield reader
        assert reader.is_alive, "the reader failed; its error is above"
    finally:
        reader._stop.set()
        reader._process.join(TIMEOUT_S)
        reader._process.kill()


def _read_on(url: str, reads: Queue[Seen], catch_ups: Synchronized[int], stop: Event) -> None:
    while not stop.is_set():
        for name, read in ENGINES.items():
            began = catch_ups.value
            rows, retries = _read_whole(url, read)
            reads.put(Seen(name, began, digest_of(rows), retries))
    reads.cancel_join_thread()  # the receiver may have exited


def _read_whole(url: str, read: Callable[[str, Manifest], list[Row]]) -> tuple[list[Row], int]:
    """Read all files of one manifest; return the number of restarts, too."""
    turns: list[int] = []

    def read_one(manifest: Manifest) -> list[Row]:
        turns.append(manifest.turn)
        return read(url, manifest)

    rows = read_live(url, read_one, missing=(FileNotFoundError, duckdb.IOException), settings=load_settings())
    return rows, len(turns) - 1


def _by_pyarrow(url: str, manifest: Manifest) -> list[Row]:
    rows: list[Row] = []
    for key in manifest.files:
        table = pq.read_table(f"{url}/{key}", partitioning=None)
        day = int(key.partition("/")[0].removeprefix("day="))
        columns = (table[name].to_pylist() for name in ("id", "value"))
        rows += [(day, number, value) for number, value in zip(*columns, strict=True)]
    return rows


def _by_duckdb(url: str, manifest: Manifest) -> list[Row]:
    paths = [f"{url}/{key}" for key in manifest.files]
    query = "SELECT day, id, value FROM read_parquet($paths, hive_partitioning = true)"
    with duckdb.connect() as connection:
        return [tuple(row) for row in connection.execute(query, {"paths": paths}).fetchall()]


ENGINES: Final[Mapping[str, Callable[[str, Manifest], list[Row]]]] = {
    "pyarrow": _by_pyarrow,
    "DuckDB": _by_duckdb,
}
