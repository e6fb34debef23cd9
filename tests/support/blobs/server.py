"""A blob server over a directory, an HA store and a journal, with a clock controlled by the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.registry.blob_rows import Blob, Reference
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import ManualClock

INTERVAL_S = 1_800.0
PART_BYTES = 5 * 1024 * 1024


@dataclass
class BlobWorld:
    """All parts of one blob server, and the state in its journal."""

    root: Path
    clock: ManualClock
    journal: Journal
    store: Store | None
    server: BlobServer

    def row(self, blob: BlobInfo) -> Blob | None:
        with self.journal.reading() as reading:
            return reading.get(Blob, blob.job_id, blob.blob_key)

    def staged_s(self, blob: BlobInfo) -> float | None:
        row = self.row(blob)
        assert row is not None
        return row.staged_s

    def owners(self, blob: BlobInfo) -> list[str]:
        with self.journal.reading() as reading:
            found = reading.where(Reference, {"job_id": blob.job_id, "blob_key": blob.blob_key})
        return [reference.owner for reference in found]

    def is_local(self, blob: BlobInfo) -> bool:
        return self.server.stores.local.size_of(blob.job_id, blob.blob_key) == blob.size_bytes

    def is_in_ha(self, blob: BlobInfo) -> bool:
        ha = self.server.stores.ha
        return ha is not None and ha.size_of(blob.job_id, blob.blob_key) is not None

    def restart(self) -> None:
        """Open a new server over the files of the old one, which was killed."""
        self.server = new_server(self.root, self.store, self.journal, self.clock)


def new_server(root: Path, store: Store | None, journal: Journal, clock: ManualClock) -> BlobServer:
    ha = None if store is None else HaBlobs(store, part_bytes=PART_BYTES, parallelism=4)
    return BlobServer(LocalBlobs(root / "blobs"), ha, journal, clock=clock)


@contextmanager
def blob_world(
    root: Path, journal_url: str | None = None, *, store: Store | None = None, with_ha: bool = True
) -> Iterator[BlobWorld]:
    """Run a blob server below `root`.

    Args:
        root: Folder of its local store, and of the HA store unless one is given.
        journal_url: SQLite below `root` by default.
        store: The HA store.
        with_ha: Whether there is an HA store beside the local store.
    """
    clock = ManualClock()
    if store is None and with_ha:
        store = LocalStore(root / "ha")
    with open_journal(journal_url or f"sqlite:///{root}/journal.db", clock=clock) as journal:
        world = BlobWorld(root, clock, journal, store, new_server(root, store, journal, clock))
        try:
            yield world
        finally:
            world.server.close()


def damage(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def key_of(blob: BlobInfo) -> tuple[str, BlobKey]:
    return blob.job_id, blob.blob_key
