"""Compare appendable files with plain files, and measure the recovery of open ones.

    python -m benchmarks.files [--part flushes stream recovery] [--rounds 3] [--folder DIR]

Flushes: 1 KiB is written and flushed, again and again, to 1, 2 and 3 volumes; and 1 KiB is written and synced
(fdatasync) by as many processes, each to a plain file on the same disk; and by one process to as many plain
files, which waits for all syncs, as a flush does. Stream: one large write and read, and plain ones with
CRC-32C, which a writer and a reader compute, too. Recovery: files that a killed process left open. The ways
alternate in each round, because the machine may be busy. The journal's part: `benchmarks.files_journal`.
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
from typing import Final, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.blobs import describe
from lockgate.storage_core.files.checksums import crc32c
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.settings import MIB, load_settings

PARTS: Final = ("flushes", "stream", "recovery")
VOLUMES: Final = (1, 2, 3)
LINE: Final = b"x" * 1023 + b"\n"
PIECE: Final = os.urandom(MIB)
Figure = TypeVar("Figure")

LAPSE_S: Final = 2.0
"""Time in which a lease lapses, in the part on recovery."""


@contextmanager
def opened(root: Path, volumes: int, url: str = "") -> Iterator[tuple[Files, Journal]]:
    """Open the files of a journal, by default in SQLite, and of volumes, below a directory."""
    root.mkdir(exist_ok=True)
    settings = load_settings(
        home=root,
        commit_window_s=LAPSE_S / 2,
        lease_renew_s=LAPSE_S / 4,
        lease_soft_s=LAPSE_S,
        lease_hard_s=LAPSE_S,
    )
    local = [DirectoryVolume(root / f"volume-{number}") for number in range(volumes)]
    with open_journal(url or f"sqlite:///{root}/journal.db") as journal:
        files = Files(journal, {one.id: one for one in local}, settings)
        try:
            yield files, journal
        finally:
            files.close()
            for one in local:
                one.close()


class Rate(NamedTuple):
    """Calls a second, and the processor time of one in microseconds."""

    per_s: float
    cpu_us: float


def flushes(root: Path, volumes: int, seconds: float) -> Rate:
    """Return the rate of flushes of 1 KiB."""
    with opened(root, volumes) as (files, _), files.create("/log") as log:
        return _rate(lambda: (log.write(LINE), log.flush()), seconds)


def plain_syncs(root: Path, processes: int, seconds: float) -> Rate:
    """Return the rate of writes of 1 KiB and syncs of the slowest of some processes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        files = [root / f"plain-{number}" for number in range(processes)]
        return min(pool.map(partial(_sync_plain, seconds=seconds), files, chunksize=1))


def _sync_plain(path: Path, seconds: float) -> Rate:
    with path.open("ab", buffering=0) as file:
        return _rate(lambda: (file.write(LINE), os.fdatasync(file.fileno())), seconds)


def barriers(root: Path, count: int, seconds: float) -> Rate:
    """Return the rate of writes of 1 KiB to as many plain files, each of which waits for all their syncs."""
    with ExitStack() as stack:
        first, *others = (
            stack.enter_context((root / f"plain-{number}").open("ab", buffering=0)) for number in range(count)
        )
        threads = stack.enter_context(ThreadPoolExecutor(count))

        def write(file: FileIO) -> None:
            file.write(LINE)
            os.fdatasync(file.fileno())

        def write_all() -> None:
            running = [threads.submit(write, file) for file in others]
            write(first)
            for one in running:
                one.result()

        return _rate(write_all, seconds)


def _rate(call: Callable[[], object], seconds: float) -> Rate:
    call()
    count, began_s, began_cpu_s = 0, time.perf_counter(), time.process_time()
    while (taken_s := time.perf_counter() - began_s) < seconds:
        call()
        count += 1
    return Rate(count / taken_s, (time.process_time() - began_cpu_s) / count * 1e6)


class Stream(NamedTuple):
    """MiB a second, and MiB for each second of processor time, of a write and of a read."""

    write: float
    read: float
    write_cpu: float
    read_cpu: float


def stream(root: Path, mib: int) -> Stream:
    """Write and flush, then read."""
    with opened(root, 1) as (files, _):

        def write() -> None:
            with files.create("/log") as log:
                for _ in range(mib):
                    log.write(PIECE)
                log.flush()

        def read() -> None:
            with files.open("/log") as log:
                _read(log.read, mib)

        return _streamed(write, read, mib)


def plain_stream(root: Path, mib: int, check: Callable[[bytes], object] = len) -> Stream:
    """Write and sync a plain file, then read it, and check each piece."""
    path = root / "plain"

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(mib):
                check(PIECE)
                file.write(PIECE)
            os.fdatasync(file.fileno())

    def read() -> None:
        with path.open("rb", buffering=0) as file:

            def piece(size: int) -> bytes:
                found = file.read(size)
                check(found)
                return found

            _read(piece, mib)

    return _streamed(write, read, mib)


def _checksum(piece: bytes) -> int:
    return crc32c(piece, 0)


def _streamed(write: Callable[[], None], read: Callable[[], None], mib: int) -> Stream:
    figures: list[float] = []
    for call in (write, read):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        call()
        figures += [mib / (time.perf_counter() - began_s), mib / (time.process_time() - began_cpu_s)]
    return Stream(figures[0], figures[2], figures[1], figures[3])


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
    heads = ("volumes", "flushes a second", "CPU us", "plain syncs", "ratio", "waiting for all", "ratio")
    table = Table(*heads, title="1 KiB a flush")
    for volumes in VOLUMES:
        ways: dict[str, Callable[[Path], Rate]] = {
            "files": partial(flushes, volumes=volumes, seconds=options.seconds),
            "plain": partial(plain_syncs, processes=volumes, seconds=options.seconds),
            "barrier": partial(barriers, count=volumes, seconds=options.seconds),
        }
        taken = in_turns(ways, options.rounds, options.folder)
        files, *others = (median(one.per_s for one in taken[name]) for name in ways)
        cpu_us = median(one.cpu_us for one in taken["files"])
        figures = (text for other in others for text in (f"{other:,.0f}", f"{other / files:.2f}"))
        table.add_row(str(volumes), f"{files:,.0f}", f"{cpu_us:.0f}", *figures)
    console.print(table)


def show_stream(options: argparse.Namespace, console: Console) -> None:
    """Print MiB a second, and the ratios to a plain file, also one whose checksum is computed."""
    ways: dict[str, Callable[[Path], Stream]] = {
        "files": partial(stream, mib=options.mib),
        "plain": partial(plain_stream, mib=options.mib),
        "checked": partial(plain_stream, mib=options.mib, check=_checksum),
    }
    taken = in_turns(ways, options.rounds, options.folder)
    heads = ("MiB/s", "files", "plain", "ratio", "plain with checksums", "ratio")
    table = Table(*heads, title=f"{options.mib} MiB, one volume")
    names = ("write, flush", "read", "write, by CPU", "read, by CPU")
    for name, field in zip(names, Stream._fields, strict=True):
        files, *others = (median(getattr(one, field) for one in taken[way]) for way in ways)
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


SHOWS: Final[dict[str, Callable[[argparse.Namespace, Console], None]]] = {
    "flushes": show_flushes,
    "stream": show_stream,
    "recovery": show_recovery,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement of flushes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=256, help="size of the file that is streamed")
    parser.add_argument("--open-files", type=int, default=1000, help="files that are recovered")
    parser.add_argument("--folder", type=Path, help="parent of the working folder; default: temporary files")
    options = parser.parse_args(arguments)
    console = Console(width=125)
    console.print(describe())
    for part in options.part:
        SHOWS[part](options, console)


if __name__ == "__main__":
    main()
