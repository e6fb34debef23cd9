"""A worker that reads the journal at observers, through one client for as long as it lives: for tests.

It is another deployment's use of Lockgate: `celery -A tests.reading_worker worker`.
"""

from __future__ import annotations

from functools import cache

from lockgate.storage_core.journal import Reading
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.observers import Client, configured_reads
from lockgate.storage_core.settings import load_settings
from lockgate.workers.app import app
from lockgate.workers.session.task import CarryingTask
from tests.observer_world import take

__all__ = ["app"]


@cache
def client() -> Client:
    """Return this process's client."""
    reads = configured_reads(load_settings())
    assert reads is not None
    return reads


def rows(reading: Reading) -> int:
    """Count what entries have made."""
    return len(reading.where(Lease, {}))


@app.task(name="test.read", base=CarryingTask)
def read() -> dict[str, int]:
    """Read wherever the client reads."""
    return {"rows": client().read(rows)}


@app.task(name="test.write", base=CarryingTask)
def write() -> dict[str, int]:
    """Write one entry."""
    take(client().journal)
    return {}
