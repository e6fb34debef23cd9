"""Compare appendable files with plain files, and measure the recovery of open ones.

    python -m benchmarks.files [--part flushes stream recovery report] [--rounds 3] [--folder DIR]

Flushes: 1 KiB is written and flushed, again and again, to 1, 2 and 3 volumes; and 1 KiB is written and synced
by as many processes, each to a plain file on the same disk; and by one process to as many plain files, which
waits for all syncs, as a flush does. Stream: one large write and read, and a plain read with CRC-32C, which
a reader computes too. Recovery: files that a killed process left open. The ways alternate in each round,
because the machine may be busy. Report: see `benchmarks.files_report`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from io import FileIO
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks import files_report
from benchmarks.blobs import describe
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.settings import MIB, load_settings

PARTS: Final = ("flushes", "stream", "recovery", "report")
VOLUMES: Final = (1, 2, 3)
LINE: Final = b"x" * 1023 + b"\n"
PIECE: Final = os.urandom(MIB)
Figure = TypeVar("Figure")

RATE: Final = 20
"""Flushes a second beside a report."""

LAPSE_S: Final = 2.0
"""Time in which a lease lapses, in the part on recovery."""


@contextmanager
def opened(root: Path, volumes: int) -> Iterator[tuple[Files, Journal]]:
    """Open the files of a journal, and of volumes, below a directory."""
    settings = load_settings(
        home=root,
        commit_window_s=LAPSE_S / 2,
        lease_renew_s=LAPSE_S / 4,
        lease_soft_s=LAPSE_S,
        lease_hard_s=LAPSE_S,
    )
    local = [LocalVolume(root / f"volume-{number}") for number in range(volumes)]
    with open_journal(f"sqlite:///{root}/journal.db") as journal:
        by_id = {VolumeId(one.id): one for one in local}
        files = Files(journal, by_id, settings)
        try:
            yield files, journal
        finally:
            files.close()
            for one in local:
                one.close()


def flushes(root: Path, volumes: int, seconds: float) -> float:
    """Return flushes of 1 KiB a second."""
    with opened(root, volumes) as (files, _), files.create("/log") as log:
        return _rate(lambda: (log.write(LINE), log.flush()), seconds)


def plain_syncs(root: Path, processes: int, seconds: float) -> float:
    """Return writes of 1 KiB and syncs a second of the slowest of some processes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        files = [root / f"plain-{number}" for number in range(processes)]
        return min(pool.map(partial(_sync_plain, seconds=seconds), files, chunksize=1))


def _sync_plain(path: Path, seconds: float) -> float:
    with path.open("ab", buffering=0) as file:
        return _rate(lambda: (file.write(LINE), os.fsync(file.fileno())), seconds)


def barriers(root: Path, count: int, seconds: float) -> float:
    """Return writes of 1 KiB a second to as many plain files, each of which waits for all their syncs."""
    with ExitStack() as stack:
        first, *others = (
            stack.enter_context((root / f"plain-{number}").open("ab", buffering=0)) for number in range(count)
        )
        threads = stack.enter_context(ThreadPoolExecutor(count))

        def write(file: FileIO) -> None:
            file.write(LINE)
            os.fsync(file.fileno())

        def write_all() -> None:
            running = [threads.submit(write, file) for file in others]
            write(first)
            for one in running:
                one.result()

        return _rate(write_all, seconds)


def _rate(call: Callable[[], object], seconds: float) -> float:
    call()
    count, began_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - began_s) < seconds:
        call()
        count += 1
    return count / taken_s


def stream(root: Path, mib: int) -> tuple[float, float]:
    """Write and flush, then read; return MiB a second of each."""
    with opened(root, 1) as (files, _):
        began_s = time.perf_counter()
        with files.create("/log") as log:
            for _ in range(mib):
                log.write(PIECE)
            log.flush()
            wrote_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        with files.open("/log") as log:
            _read(log.read, mib)
        return mib / wrote_s, mib / (time.perf_counter() - began_s)


def plain_stream(root: Path, mib: int) -> tuple[float, float]:
    """Write and sync a plain file, then read it; return MiB a second of each."""
    path = root / "plain"
    began_s = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(mib):
            file.write(PIECE)
        os.fsync(file.fileno())
    wrote_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        _read(file.read, mib)
    return mib / wrote_s, mib / (time.perf_counter() - began_s)


def checked_stream(root: Path, mib: int) -> tuple[float, float]:
    """Write a plain file, then read it and compute its CRC-32C; return MiB a second of each."""
    path = root / "plain"
    wrote_mib_s, _ = plain_stream(root, mib)
    with path.open("rb", buffering=0) as file:

        def read(size: int) -> bytes:
            found = file.read(size)
            crc32c(found, 0)
            return found

        began_s = time.perf_counter()
        _read(read, mib)
        return wrote_mib_s, mib / (time.perf_counter() - began_s)


def _read(read: Callable[[int], bytes | None], mib: int) -> None:
    length = 0
    while found := read(MIB):
        length += len(found)
    if length != mib * MIB:
        raise AssertionError(f"{length} bytes were read of {mib} MiB")


def recovery(root: Path, count: int) -> tuple[float, float]:
    """Leave files open in a process that ends at once; return the seconds to open and to recover them."""
    context = multiprocessing.get_context("spawn")
    receives, sends = context.Pipe(duplex=False)
    child = context.Process(target=_leave_open, args=(root, count, sends))
    child.start()
    opened_s: float = receives.recv()
    child.join()
    time.sleep(LAPSE_S)
    with opened(root, 3) as (files, _):
        files.recovery.lapsed()
        time.sleep(LAPSE_S)  # a process takes a lease for lapsed after it has seen it twice
        began_s = time.perf_counter()
        done = files.recovery.recover_lapsed()
        taken_s = time.perf_counter() - began_s
    wrong = [one for one in done if one.length_bytes != len(LINE)]
    if wrong or len(done) != count:
        raise AssertionError(f"{len(done)} of {count} files were recovered; wrong: {wrong[:3]}")
    return opened_s, taken_s


def _leave_open(root: Path, count: int, sends: Connection) -> None:
    with opened(root, 3) as (files, _):
        began_s = time.perf_counter()
        kept = []
        for number in range(count):
            log = files.create(f"/log-{number}")
            log.write(LINE)
            log.flush()
            kept.append(log)
        sends.send(time.perf_counter() - began_s)
        os._exit(0)


def in_turns(
    ways: dict[str, Callable[[Path], Figure]], rounds: int, folder: Path | None
) -> dict[str, list[Figure]]:
    """Measure the ways alternately, each in a new directory."""
    taken: dict[str, list[Figure]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(prefix="lockgate-bench-", dir=folder) as root:
                taken[name].append(way(Path(root)))
    return taken


def show_flushes(options: argparse.Namespace, console: Console) -> None:
    """Print flushes a second, and the ratio of syncs of plain files to them."""
    heads = (
        "volumes",
        "flushes a second",
        "plain syncs",
        "plain / flushes",
        "waiting for all",
        "that / flushes",
    )
    table = Table(*heads, title="1 KiB a flush")
    for volumes in VOLUMES:
        ways: dict[str, Callable[[Path], float]] = {
            "files": partial(flushes, volumes=volumes, seconds=options.seconds),
            "plain": partial(plain_syncs, processes=volumes, seconds=options.seconds),
            "barrier": partial(barriers, count=volumes, seconds=options.seconds),
        }
        taken = in_turns(ways, options.rounds, options.folder)
        files, *others = (median(taken[name]) for name in ways)
        figures = (text for other in others for text in (f"{other:,.0f}", f"{other / files:.2f}"))
        table.add_row(str(volumes), f"{files:,.0f}", *figures)
    console.print(table)


def show_stream(options: argparse.Namespace, console: Console) -> None:
    """Print MiB a second, and the ratios to a plain file, also one whose checksum is computed."""
    ways: dict[str, Callable[[Path], tuple[float, float]]] = {
        "files": partial(stream, mib=options.mib),
        "plain": partial(plain_stream, mib=options.mib),
        "checked": partial(checked_stream, mib=options.mib),
    }
    taken = in_turns(ways, options.rounds, options.folder)
    heads = ("", "MiB/s", "plain MiB/s", "ratio", "plain, checked on reading", "ratio")
    table = Table(*heads, title=f"{options.mib} MiB, one volume")
    for name, at in (("write, flush", 0), ("read", 1)):
        files, *others = (median(one[at] for one in taken[way]) for way in ways)
        figures = (text for other in others for text in (f"{other:,.0f}", f"{files / other:.2f}"))
        table.add_row(name, f"{files:,.0f}", *figures)
    console.print(table)


def show_recovery(options: argparse.Namespace, console: Console) -> None:
    """Print the seconds to recover the files that a killed process left open."""
    ways = {"files": partial(recovery, count=options.open_files)}
    taken = in_turns(ways, options.rounds, options.folder)["files"]
    opened_s, recovered_s = (median(one[at] for one in taken) for at in (0, 1))
    console.print(
        f"{options.open_files:,} open files of three volumes: opened and flushed in {opened_s:.1f} s, "
        f"recovered in {recovered_s:.1f} s"
    )


def show_report(options: argparse.Namespace, console: Console) -> None:
    """Print what block reports do to a writer's flushes, and the entries that they write."""
    with tempfile.TemporaryDirectory(prefix="lockgate-bench-", dir=options.folder) as root:
        flushed, reports = files_report.measure(Path(root), options.replicas, options.quiet_seconds, RATE)
    table = Table(
        "", "flushes", "p50 ms", "p99 ms", title=f"a flush of 1 KiB, {RATE} a second, on 3 volume servers"
    )
    for one in flushed:
        times = (f"{one.quantile_s(percent) * 1000:.2f}" for percent in (50, 99))
        table.add_row(one.when, f"{len(one.taken_s):,}", *times)
    console.print(table)
    for one in reports:
        took = f"{one.taken_s:.1f} s, {one.entries} entries"
        console.print(f"report of {one.replicas:,} replicas, changed: {one.what}: {took}")


SHOWS: Final[dict[str, Callable[[argparse.Namespace, Console], None]]] = {
    "flushes": show_flushes,
    "stream": show_stream,
    "recovery": show_recovery,
    "report": show_report,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement of flushes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=256, help="size of the file that is streamed")
    parser.add_argument("--open-files", type=int, default=1000, help="files that are recovered")
    parser.add_argument("--replicas", type=int, default=1_000_000, help="replicas that are reported")
    parser.add_argument("--quiet-seconds", type=float, default=30.0, help="time before and after the reports")
    parser.add_argument("--folder", type=Path, help="parent of the working folder; default: temporary files")
    options = parser.parse_args(arguments)
    console = Console(width=125)
    console.print(describe())
    for part in options.part:
        SHOWS[part](options, console)


if __name__ == "__main__":
    main()
