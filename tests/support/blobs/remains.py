"""Helpers that find all remains of blobs, and that sweep until none may be left."""

from __future__ import annotations

from lockgate.storage_core.blobs.storage.blob_stores import OWNER
from lockgate.storage_core.blobs.storage.listing_time import LISTED
from lockgate.storage_core.blobs.sweep.lapsed_sets import SEEN
from tests.support.blobs.server import INTERVAL_S, BlobWorld


def everything(world: BlobWorld) -> list[str]:
    """Return all remains of blobs: partial and complete files, objects, open uploads, rows."""
    local = world.server.stores.local
    files = [
        str(path)
        for path in local.path.rglob("*")
        if path.is_file() and path.name not in {LISTED, OWNER, SEEN}
    ]
    found = files + [str(row.key) for row in world.server.page()]
    found += [str(one.key) for one in world.server.references()]
    if world.store is not None:
        found += [info.key for page in world.store.pages() for info in page if info.key != OWNER]
        found += [info.key for page in world.store.upload_pages() for info in page]
    return found


def sweep_twice(world: BlobWorld) -> None:
    for _ in range(2):
        world.clock.sleep(INTERVAL_S)
        world.server.sweep(dry_run=False)
