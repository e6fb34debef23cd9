"""A worker that reads the journal at observers, through one client for its whole lifetime: for tests.

It is another deployment's use of Lockgate: `celery -A tests.support.workers.reading_worker worker`.
"""

from __future__ import annotations

from functools import cache

from lockgate.storage_core.journal import Reading
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.settings import load_settings
from lockgate.workers.celery_app import app
from lockgate.workers.tasks import SessionTask
from tests.support.journal.observers import take

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


@app.task(name="test.read", base=SessionTask)
def read() -> dict[str, int]:
    """Read wherever the client reads."""
    return {"rows": client().read(rows)}


@app.task(name="test.write", base=SessionTask)
def write() -> dict[str, int]:
    """Write one entry."""
    take(client().journal)
    return {}
