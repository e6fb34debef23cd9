"""A program whose processes open one new SQLite journal together, and write to it without a pause.

python -m tests.support.processes.sqlite_writers URL WRITERS ENTRIES

Each process is a fork of one that has imported everything, because eight imports cost more than all writes.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.synchronize import Barrier
from typing import Final

from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.entries.family import known_families
from tests.support.journal.database import take

PATIENCE_S: Final = 300.0


def write_on(url: str, writer: int, entries: int, all_started: Barrier) -> None:
    """Write until the journal has this many entries."""
    with open_journal(url) as journal:
        all_started.wait(PATIENCE_S)
        number, reached = 0, 0
        while reached < entries:
            reached = journal.apply(take(f"{writer}/{number}")).stamp.sequence
            number += 1


def main() -> int:
    """Return the number of processes that failed."""
    url, writers, entries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    known_families()
    forks = multiprocessing.get_context("fork")
    all_started = forks.Barrier(writers)
    processes = [
        forks.Process(target=write_on, args=(url, number, entries, all_started)) for number in range(writers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main())
