"""Measure the journal's part of appendable files: small files, a large directory, a report of many replicas.

    python -m benchmarks.files_journal [--part small tree report] [--database sqlite postgresql]

Small: 1 KiB is written to a new file, which is closed, and then appended to it. Tree: a status and pages of a
directory. Report: one process makes directories at a fixed rate, an entry each, while another one compares
a volume with the journal; the volume is a list in memory, so that the journal alone is measured.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, cast

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection as SqlConnection

from benchmarks.blobs import describe
from benchmarks.files import LINE, opened
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.members import MarkReplica
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
from lockgate.storage_core.files.replicas.replica_check import HeadSlices, ReplicaCheck
from lockgate.storage_core.files.replicas.upkeep import ReplicaUpkeep
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.journal import Journal, Mutation, Refused, Stamp, open_journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.settings import load_settings
from tests.support.postgres import postgres_bin, primary

PARTS: Final = ("small", "tree", "report")
VOLUMES: Final = (1, 3)
ROWS: Final = 10_000
"""Rows of each transaction that fills a journal."""

DIFFERENCES: Final = 10_000
"""Replicas that a report finds lost."""

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


def report(url: str, root: Path, console: Console, replicas: int = 1_000_000, quiet_s: float = 15.0) -> None:
    """Print what an entry takes beside a report of one volume, and how long the report holds the head.

    As in HDFS, the head is held for a whole virtual volume; then it is not held; then differences are
    written at once, in slices, and in slices without pauses.
    """
    name, other = VolumeId("volume-0"), VolumeId("volume-1")
    with open_journal(url) as journal:
        journal.apply(MakeDirectory(path="/made"))
        blocks = list(_blocks(replicas, journal.status().stamp))
        few = blocks[:: max(1, replicas // DIFFERENCES)]
        registered, names = _registered([name, other]), _file(blocks)
        fill(journal, itertools.chain(registered, names, _members(blocks, [name]), _also(few, other)))
        volumes = cast("Mapping[VolumeId, Volume]", {name: ListedVolume(name, blocks)})
        upkeep = ReplicaUpkeep(journal, volumes, load_settings(home=root))
        held = HeldHead(journal)

        def holding(slices: int) -> None:
            with journal.reading() as reading:
                ends = reading.quantiles(Member, {"volume": name}, "block", slices)
            compared = ReplicaCheck(journal, volumes)
            after: BlockId | None = None
            for end in map(BlockId, ends):
                with maintenance(journal, "soft"):
                    for _ in compared.of_volume(name, after, end):
                        continue
                after = end

        def compare(slices: int) -> None:
            for found in upkeep.check(verify=False, virtual_volumes=slices).findings():
                if found.volume == name:
                    raise RuntimeError(str(found))

        def mark(fault: Fault | None, limit_ms: float, clock: Clock) -> None:
            marks = [
                MarkReplica(block=row.block, volume=name, generation=row.stamp, fault=fault) for row in few
            ]
            slices: Iterable[Sequence[MarkReplica]] = [marks]
            if limit_ms:
                slices = HeadSlices(clock, limit_ms).of(marks)
            for some in slices:
                if any(isinstance(one, Refused) for one in journal.write([Mutation(op=op) for op in some])):
                    raise RuntimeError("a mark was refused")

        ways: dict[str, Callable[[], None]] = {"quiet": lambda: time.sleep(quiet_s)}
        for slices in (1, 10):
            ways[f"head held for each of {slices} virtual volumes"] = partial(holding, slices)
            ways[f"pages, {slices} virtual volumes"] = partial(compare, slices)
        ways["quiet again"] = ways["quiet"]
        for what, limit_ms, clock in (
            ("at once", 0.0, SystemClock()),
            ("in slices", 50.0, SystemClock()),
            ("without pauses", 50.0, Restless()),
        ):
            ways[f"{len(few):,} differences {what}"] = partial(mark, Fault.LOST, limit_ms, clock)
            ways[f"the same repaired {what}"] = partial(mark, None, limit_ms, clock)
        with entries_beside(url) as pipe:
            spans = []
            for what, way in ways.items():
                time.sleep(1.0)
                held.longest_s, began_s = 0.0, time.perf_counter()
                way()
                spans.append((what, began_s, time.perf_counter(), held.longest_s))
            time.sleep(1.0)
            pipe.send("stop")
            taken: list[tuple[float, float, bool]] = pipe.recv()
    console.print(_beside(f"A report of {replicas:,} replicas", spans, taken))


def _beside(
    title: str, spans: Sequence[tuple[str, float, float, float]], taken: Sequence[tuple[float, float, bool]]
) -> Table:
    """Return a table of what entries took beside each part of the work."""
    table = Table(title=f"{title}, beside {RATE} entries a second; ms")
    for heading in ("report", "took s", "entries", "refused", "p50", "p99", "longest", "head held for"):
        table.add_column(heading, justify="left" if heading == "report" else "right")
    for what, began_s, ended_s, held_s in spans:
        # Also an entry that began before the report, and waited for it.
        beside = [one for one in taken if began_s < one[0] + one[1] and one[0] < ended_s]
        within, refused = [1000 * took_s for _, took_s, _ in beside], sum(one[2] for one in beside)
        percents = quantiles([*within, *within], n=100) if within else [0.0] * 99
        figures = (percents[49], percents[98], max(within, default=0.0), 1000 * held_s)
        table.add_row(
            what,
            f"{ended_s - began_s:.1f}",
            str(len(within)),
            str(refused),
            *(f"{one:.1f}" for one in figures),
        )
    return table


class HeldHead:
    """Measures how long this process holds the head of a journal; on PostgreSQL with the wait for it.

    Attributes:
        longest_s: The longest time since it was set to 0.
    """

    def __init__(self, journal: Journal) -> None:
        self.longest_s = 0.0
        write = journal.database.write

        @contextmanager
        def timed_write() -> Iterator[SqlConnection]:
            with write() as connection:
                began_s = time.perf_counter()
                yield connection
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)

        journal.database.write = timed_write  # type: ignore[method-assign]


class Restless(SystemClock):
    """A clock that does not sleep."""

    def sleep(self, seconds: float) -> None:
        """Return at once."""


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
    taken = list[tuple[float, float, bool]]()
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
            try:
                journal.apply(MakeDirectory(path=f"/made/{number}"))
                is_refused = False
            except JournalUnavailableError:  # it has waited for the head for too long
                is_refused = True
            taken.append((began_s, time.perf_counter() - began_s, is_refused))
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


def _also(blocks: Sequence[Block], volume: VolumeId) -> Iterator[Row]:
    for row in blocks:
        yield Member(block=row.block, volume=volume)


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
