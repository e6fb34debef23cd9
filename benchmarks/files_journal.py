"""Measure the journal's part of appendable files: small files, a large directory, a report of many replicas.

    python -m benchmarks.files_journal [--part small tree report] [--database sqlite postgresql]

Small: 1 KiB is written to a new file, which is closed, and then appended to it. Tree: a status and pages of a
directory. Report: one process makes directories at a fixed rate, an entry each, while another one compares
volumes with the journal; the volumes are lists in memory, so that the journal alone is measured.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, cast

from rich.console import Console

from benchmarks.blobs import describe
from benchmarks.files import LINE, opened
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import (
    ROOT,
    Block,
    File,
    FileState,
    Inode,
    InodeKind,
    Member,
    RegisteredVolume,
)
from lockgate.storage_core.files.namespace.tree import MakeDirectory
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.settings import load_settings
from tests.support.postgres import postgres_bin, primary

PARTS: Final = ("small", "tree", "report")
VOLUMES: Final = (1, 3)
ROWS: Final = 10_000
"""Rows of each transaction that fills a journal."""

RATE: Final = 20
"""Entries a second beside a report."""


def small(url: str, root: Path, console: Console) -> None:
    """Print what it takes to create a small file and to append to it."""
    for volumes in VOLUMES:
        with opened(root / f"home-{volumes}", volumes, url) as (files, journal):
            files.make_directory(f"/logs-{volumes}")
            create(files, f"/logs-{volumes}", -1)
            for what, call in (("create", create), ("append", append)):
                before = journal.status().stamp.sequence
                taken = timed(partial(call, files, f"/logs-{volumes}"), 300)
                entries = (journal.status().stamp.sequence - before) / 300
                console.print(f"{what} 1 KiB, {volumes} volumes: {taken}, {entries:.1f} entries")


def create(files: Files, folder: str, number: int) -> None:
    """Write a small file."""
    with files.create(f"{folder}/{number}") as log:
        log.write(LINE)


def append(files: Files, folder: str, number: int) -> None:
    """Append to a small file."""
    with files.append(f"{folder}/{number}") as log:
        log.write(LINE)


def tree(url: str, root: Path, console: Console, names: int = 100_000) -> None:
    """Print what a status and a page of a listing take in large directories."""
    with open_journal(url) as journal:
        fill(journal, _names(names))
        files = Files(journal, {}, load_settings(home=root))
        ways: dict[str, Callable[[int], object]] = {
            "status": lambda number: files.status(f"/a/b/f-{number:06d}"),
            "first page of 500": lambda _: files.list("/a/b"),
            "page in the middle": lambda _: files.list("/a/b", f"f-{names // 2:06d}"),
        }
        for what, way in ways.items():
            console.print(f"{what} of {names:,} names: {timed(way, 100)}")


def report(url: str, root: Path, console: Console, replicas: int = 1_000_000, quiet_s: float = 30.0) -> None:
    """Print what an entry takes beside a report, and what the report takes."""
    with open_journal(url) as journal:
        journal.apply(MakeDirectory(path="/made"))
        volumes = [VolumeId(f"volume-{number}") for number in range(3)]
        blocks = list(_blocks(replicas // len(volumes), journal.status().stamp))
        fill(journal, itertools.chain(_registered(volumes), _file(blocks), _members(blocks, volumes)))
        listed = cast("Mapping[VolumeId, Volume]", {one: ListedVolume(one, blocks) for one in volumes})
        files = Files(journal, listed, load_settings(home=root))
        with entries_beside(url) as pipe:
            spans = [("before", time.perf_counter())]
            time.sleep(quiet_s)
            spans.append(("during", time.perf_counter()))
            check = files.upkeep.check(verify=False)
            found = sum(1 for _ in check.findings())
            spans.append(("after", time.perf_counter()))
            time.sleep(quiet_s)
            pipe.send("stop")
            taken: list[tuple[float, float]] = pipe.recv()
    took_s = spans[2][1] - spans[1][1]
    console.print(f"report of {check.replicas:,} replicas, {found} findings: {took_s:.0f} s")
    for (when, first_s), (_, last_s) in itertools.pairwise([*spans, ("", time.perf_counter())]):
        within = [took_s * 1000 for at_s, took_s in taken if first_s <= at_s < last_s]
        percents = quantiles(within, n=100)
        figures = f"p50 {percents[49]:.2f} ms, p99 {percents[98]:.2f} ms, longest {max(within):.2f} ms"
        console.print(f"{len(within):,} entries {when}: {figures}")


class ListedVolume:
    """A volume whose replicas are those of a list; what else a report does not call is missing."""

    def __init__(self, volume: VolumeId, blocks: Sequence[Block]) -> None:
        self.id = volume
        self._ids = [row.block for row in blocks]
        self._replicas = [
            Replica(BlockId(row.block), row.stamp, ReplicaState.SEALED, row.length_bytes, row.length_bytes)
            for row in blocks
        ]

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas."""
        first = 0 if after is None else bisect_right(self._ids, after)
        return tuple(self._replicas[first : first + limit])


@contextmanager
def entries_beside(url: str) -> Iterator[Connection]:
    """Start a process that writes entries; after a message it sends when each one began and what it took."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_write_entries, args=(url, there))
    child.start()
    there.close()
    here.recv()
    try:
        yield here
    finally:
        child.join(60.0)
        child.kill()


def _write_entries(url: str, pipe: Connection) -> None:
    taken = []
    with open_journal(url) as journal:
        journal.apply(MakeDirectory(path="/made/first"))
        pipe.send("writing")
        due_s = time.perf_counter()
        for number in itertools.count():
            if pipe.poll():
                break
            due_s = max(due_s + 1 / RATE, time.perf_counter())
            time.sleep(max(0.0, due_s - time.perf_counter()))
            began_s = time.perf_counter()
            journal.apply(MakeDirectory(path=f"/made/{number}"))
            taken.append((began_s, time.perf_counter() - began_s))
    pipe.send(taken)


def timed(call: Callable[[int], object], count: int) -> str:
    """Return the median time of calls, and the time that 90 % of them did not exceed."""
    taken = []
    for number in range(count):
        began_s = time.perf_counter()
        call(number)
        taken.append((time.perf_counter() - began_s) * 1000)
    return f"{median(taken):.2f} ms, p90 {quantiles(taken, n=10)[8]:.2f} ms"


def fill(journal: Journal, rows: Iterator[Row]) -> None:
    """Write new rows straight into the tables."""
    while page := {(type(row), row.key): row for row in itertools.islice(rows, ROWS)}:
        with journal.database.write() as connection:
            SqlRows(connection, journal.name).write(page, absent=page)


def _names(count: int) -> Iterator[Row]:
    """Yield as many names in `/` as in `/a/b`."""
    for inode, (parent, name) in enumerate([(ROOT, "a"), (2, "b")], start=2):
        yield Inode(parent=parent, name=name, inode=inode, kind=InodeKind.DIRECTORY, made_s=0.0)
    for number in range(count):
        for parent, inode in ((ROOT, 10 + 2 * number), (3, 11 + 2 * number)):
            name = f"f-{number:06d}"
            yield Inode(parent=parent, name=name, inode=inode, kind=InodeKind.FILE, made_s=0.0)
            yield File(inode=inode, state=FileState.CLOSED, blocks=0, length_bytes=0, changed_s=0.0)


def _blocks(count: int, stamp: Stamp) -> Iterator[Block]:
    for number in range(count):
        yield Block(
            block=number + 1,
            file=2,
            ordinal=number,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            length_bytes=64,
            state=ReplicaState.SEALED,
        )


def _registered(volumes: Sequence[VolumeId]) -> Iterator[Row]:
    for volume in volumes:
        yield RegisteredVolume(volume=volume, url="", added_s=0.0)


def _file(blocks: Sequence[Block]) -> Iterator[Row]:
    yield Inode(parent=ROOT, name="log", inode=2, kind=InodeKind.FILE, made_s=0.0)
    length = sum(row.length_bytes for row in blocks)
    yield File(inode=2, state=FileState.CLOSED, blocks=len(blocks), length_bytes=length, changed_s=0.0)


def _members(blocks: Sequence[Block], volumes: Sequence[VolumeId]) -> Iterator[Row]:
    for row in blocks:
        yield row
        for volume in volumes:
            yield Member(block=row.block, volume=volume)


SHOWS: Final[Mapping[str, Callable[..., None]]] = {"small": small, "tree": tree, "report": report}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of each part on each database."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--folder", type=Path, help="parent of the working folder; default: temporary files")
    parser.add_argument("--replicas", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    console = Console(width=125)
    console.print(describe())
    for part, kind in itertools.product(options.part, options.database):
        more: dict[str, Any] = {"replicas": options.replicas} if part == "report" else {}
        with ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
            url = f"sqlite:///{root}/journal.db"
            if kind == "postgresql":
                if postgres_bin() is None:
                    continue
                url = stack.enter_context(primary(root / "server")).new_database("bench")
            console.print(f"{part}, {kind}:")
            SHOWS[part](url, root, console, **more)


if __name__ == "__main__":
    main()
