"""Small Parquet files of a destination, and the rows that its readers see."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lockgate.storage_core.commit.destination.manifest import read_live
from lockgate.storage_core.compaction.compact import Compaction, compact
from tests.support.commit.destination import World


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a table as a Parquet file."""
    sink = BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def numbers(*values: int) -> bytes:
    """Return a file with these numbers and a text for each."""
    return parquet(pa.table({"n": values, "text": [f"row {value}" for value in values]}))


def rows(world: World) -> list[tuple[Any, ...]]:
    """Return the live rows with their partition, sorted, as a reader of the log sees them."""

    def read(manifest: Any) -> list[tuple[Any, ...]]:
        found = []
        for key in manifest.files:
            table = pq.read_table(BytesIO(world.store.get(key)))
            found += [(key.rpartition("/")[0], *row.values()) for row in table.to_pylist()]
        return sorted(found, key=repr)

    return read_live(world.url, read, settings=world.settings)


def compacted(world: World, **options: Any) -> Compaction:
    return compact(world.url, settings=world.settings, clock=world.clock, **options)
