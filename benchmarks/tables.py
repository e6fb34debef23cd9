"""Measure what projecting one more turn into a table costs, up to 10,000 turns and 100,000 live files.

    python -m benchmarks.tables [--turns 10000] [--format delta]

The log's records are written beforehand, outside the measure: each turn adds ten files of two columns in a
partition of its own. "Turn n" is the median of nine turns there, "a hundred turns" the mean of the next
hundred with their checkpoints and merges; "replace" is one turn that replaces the files of an early one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from statistics import fmean, median
from typing import Final, NamedTuple
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from lockgate.storage_core.commit.destination.projection import PROJECTIONS, project, write_statistics
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job_record import Column, JobId
from lockgate.storage_core.commit.records.log_records import KeyShard, LiveFile, LiveShard, Outcome
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.commit.records.shards import ShardRef, shard_ref, write_shard
from lockgate.storage_core.commit.records.table_records import TableFormat, TablesRecord
from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.protocol import ObjectInfo

FILES: Final = 10
MEASURED: Final = (10, 100, 1_000, 10_000)
AROUND: Final = 9
AFTER: Final = 101
"""The replace is so many turns later, which is no turn of a checkpoint."""
COLUMNS: Final = (Column("x", "bigint"), Column("day", "int"))


class Writes(InstrumentedStore):
    """Counts the bytes that are written."""

    written = 0

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """Count them."""
        self.written += len(data)
        return super().create(key, data)

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Count them."""
        self.written += len(data)
        return super().put(key, data)


class Cost(NamedTuple):
    """What one turn cost."""

    cpu_ms: float
    calls: float
    written: float


def keys_of(turn: int, name: str = "part") -> list[str]:
    """Return the files that a turn adds."""
    return [f"day={turn}/{name}-{number}.parquet" for number in range(FILES)]


def decide(store: Store, turn: int, added: list[str], removed: list[str]) -> None:
    """Write the records of a published turn."""
    bounds = {"x": ColumnStatistics(nulls=0, minimum=str(turn), maximum=str(turn + 1))}
    files = tuple(
        LiveFile(key=key, size=1_000, rows=10, token=Token("t"), job_id=JobId("j-g1")) for key in added
    )
    ref = shard_ref(
        write_shard(store, layout.log_shard, LiveShard(files=files)), [1_000] * FILES, [10] * FILES
    )
    gone = tuple(_removed(store, removed))
    outcome = Outcome(
        job_id=JobId(f"job-{turn}-g1"),
        turn=turn,
        verdict="published",
        decided_s=1_800_000_000.0 + turn,
        added=(ref,),
        removed=gone,
        columns=COLUMNS,
        statistics=(write_statistics(store, [bounds] * FILES, with_types=False),),
    )
    store.put(layout.turn_outcome(turn), encode(outcome))


def _removed(store: Store, keys: list[str]) -> Iterator[ShardRef]:
    if keys:
        name = write_shard(store, layout.log_shard, KeyShard(keys=tuple(keys)))
        yield shard_ref(name, [0] * len(keys), [0] * len(keys))


def measure(folder: str, name: str, turns: int) -> dict[int, tuple[Cost, Cost, Cost]]:
    """Project turns one by one; return the median, mean and replace at each measured turn."""
    store = open_store(folder)
    tables = TablesRecord(
        number=1,
        table_id="00000000-0000-4000-8000-000000000000",
        token=Token("t"),
        changed_s=0,
        formats={name: TableFormat(first_turn=1)},
    )
    costs: list[Cost] = []
    replaces = {turn + AFTER: turn // 2 for turn in MEASURED}
    for turn in range(1, turns + AFTER + 1):
        replaced = replaces.get(turn)
        if replaced is None:
            decide(store, turn, keys_of(turn), [])
        else:
            decide(store, turn, keys_of(replaced, "new"), keys_of(replaced))
        metered = Writes(store)
        began_s = time.process_time()
        failed = project(metered, tables, turn)
        cpu_ms = (time.process_time() - began_s) * 1000
        if failed:
            raise failed[name]
        costs.append(Cost(cpu_ms, metered.requests.total(), metered.written))
    found = {}
    for turn in (turn for turn in MEASURED if turn <= turns):
        around = costs[turn - AROUND // 2 - 1 : turn + AROUND // 2]
        following = costs[turn - 1 : turn + 99]
        found[turn] = (
            Cost(*(median(values) for values in zip(*around, strict=True))),
            Cost(*(fmean(values) for values in zip(*following, strict=True))),
            costs[turn + AFTER - 1],
        )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=MEASURED[-1])
    parser.add_argument("--format", action="append", choices=list(PROJECTIONS))
    options = parser.parse_args()
    table = Table("format", "turn", "live files", "", "CPU ms", "calls", "KB written")
    for name in options.format or PROJECTIONS:
        # CPU time is measured: a disk's flushes would only take longer.
        with tempfile.TemporaryDirectory() as folder, patch("os.fsync", lambda _: None):
            for turn, found in measure(folder, name, options.turns).items():
                for what, cost in zip(("turn", "a hundred turns", "replace"), found, strict=True):
                    cells = f"{cost.cpu_ms:.1f}", f"{cost.calls:.1f}", f"{cost.written / 1000:.1f}"
                    table.add_row(name, f"{turn:,}", f"{turn * FILES:,}", what, *cells)
    Console().print(table)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
