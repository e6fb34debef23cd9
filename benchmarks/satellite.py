"""Measure a satellite: small files made, listed, reported and moved, and the memory that it takes.

    python -m benchmarks.satellite [--files 20000] [--empty 0] [--threads 8]

A tenth of the files is made on the old side before the mount, and moved at the end. `--empty 1000000` makes
so many more files without bytes in the satellite, 500 in a transaction. Each phase runs in this process,
whose peak of memory is printed after it: it must not grow with the number of files.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, cast

from rich.console import Console

from benchmarks.blobs import describe
from lockgate.storage_core.cli.file_operands import directory_sizes
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.file_blocks import CloseFile, OpenFile
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Mutation, Written
from lockgate.storage_core.journal.database.schema import ENTRY
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.move import Move, add_mount, status_of_mount
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.satellite.overlay import Overlay
from lockgate.storage_core.settings import NamedJournal, load_settings

FOLDER: Final = 1_000
"""Files of a directory."""
GROUP: Final = 500
"""Files without bytes that are made in one transaction."""


def path(number: int) -> str:
    """Return the path of a file."""
    return f"/logs/{number // FOLDER:05d}/{number:07d}.log"


def make(files: Files, numbers: range, threads: int) -> int:
    """Make files of 200 bytes with several threads, which share the journal's transactions."""

    def one(number: int) -> None:
        with files.create(path(number)) as writer:
            writer.write(b"x" * 200)

    for folder in {path(number).rpartition("/")[0] for number in numbers}:
        files.make_directory(folder, parents=True)
    with ThreadPoolExecutor(threads) as pool:
        for first in range(numbers.start, numbers.stop, FOLDER):
            list(pool.map(one, range(first, min(first + FOLDER, numbers.stop))))
    return len(numbers)


def make_empty(files: Files, journal: Journal, numbers: range) -> int:
    """Make closed files without bytes, with entries in groups."""
    for folder in {path(number).rpartition("/")[0] for number in numbers}:
        files.make_directory(folder, parents=True)
    for first in range(numbers.start, numbers.stop, GROUP):
        names = [path(number) for number in range(first, min(first + GROUP, numbers.stop))]
        opens = [OpenFile(path=one, mode="create", holder="empty", soft_s=60, hard_s=60) for one in names]
        made = [cast("Written", one).result for one in journal.write([Mutation(op=op) for op in opens])]
        closes = [CloseFile(resource=file_resource(one.inode), stamp=one.stamp) for one in made]
        journal.write([Mutation(op=op) for op in closes])
    return len(numbers)


def listed(files: Files) -> int:
    """Count the files of all directories, a page at a time."""
    return sum(row.files for row in directory_sizes(files, "/"))


def journal_bytes(journal: Journal) -> int:
    """Return the bytes of an SQLite journal without its entries, as after a prune."""
    with (
        closing(sqlite3.connect(journal.url.removeprefix("sqlite:///"))) as source,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
    ):
        source.backup(copy)
        copy.execute(f"delete from {ENTRY.name}")
        copy.execute("vacuum")
        pages, size = (copy.execute(f"pragma page_{what}").fetchone()[0] for what in ("count", "size"))
        return int(pages * size)


def measure(console: Console, what: str, call: Callable[[], int]) -> None:
    """Print the rate of a phase, and the peak of memory until its end."""
    began_s = time.perf_counter()
    count = call()
    seconds = time.perf_counter() - began_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    console.print(
        f"{what}: {count:,} files in {seconds:.1f} s, {count / seconds:,.0f} a second; peak {peak} MiB"
    )


def main() -> None:
    """Run the phases in a temporary home."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--empty", type=int, default=0)
    parser.add_argument("--threads", type=int, default=8)
    chosen = parser.parse_args()
    console, old = Console(), chosen.files // 10
    console.print(describe())
    with tempfile.TemporaryDirectory() as root:
        settings = load_settings(home=Path(root), journals={"logs": NamedJournal()})
        with open_files(settings) as opened:
            files = cast("Overlay", opened)
            measure(console, "made before the mount", lambda: make(files, range(old), chosen.threads))
            journal = configured_journal(settings.for_journal("logs"))
            assert journal is not None
            mount = Mount(
                prefix="/logs", satellite="logs", journal="logs", identity=journal.identity, added_s=0
            )
            add_mount(files, mount)
            (mount,) = files.all_mounts()
            measure(
                console,
                "made in the satellite",
                lambda: make(files, range(old, chosen.files), chosen.threads),
            )
            if chosen.empty:
                first = -(-chosen.files // FOLDER) * FOLDER
                numbers = range(first, first + chosen.empty)
                measure(console, "made empty, in groups", lambda: make_empty(files, journal, numbers))
            measure(console, "listed and reported", lambda: listed(files))
            measure(console, "counted by status", lambda: status_of_mount(files, mount).old_files)
            measure(console, "moved", lambda: Move(files, mount).run().files)
            measure(console, "listed and reported", lambda: listed(files))
            each = journal_bytes(journal) / (chosen.files + chosen.empty)
            console.print(f"the satellite's journal without its entries: {each:,.0f} bytes a file")


if __name__ == "__main__":
    main()
