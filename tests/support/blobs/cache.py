"""A cache over a blob server that counts downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.blobs.cache.directory import CacheFolder
from lockgate.storage_core.blobs.cache.pins import JOB
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.settings import MIB
from tests.support.blobs.server import INTERVAL_S, BlobWorld, blob_world


class CountedServer(BlobServer):
    """A server that can be down and records downloads."""

    fetched: list[BlobKey]
    is_down: bool = False

    @classmethod
    def like(cls, server: BlobServer, clock: object) -> CountedServer:
        counted = cls(server.stores.local, server.stores.ha, server.stores.journal, clock=clock)  # type: ignore[arg-type]
        counted.fetched = []
        return counted

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        if self.is_down:
            raise StoreUnavailableError("the server is down")
        self.fetched.append(blob_key)
        return super().fetch(local, job_id, blob_key)


class DownStore(HaBlobs):
    """An HA store that is unavailable and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def fill(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        self.calls += 1
        raise StoreUnavailableError("the HA store is down")


@dataclass
class CacheWorld:
    """A blob server, and a cache over it."""

    blobs: BlobWorld
    server: CountedServer
    path: Path
    ha: HaBlobs | None = None
    limit_bytes: int = 100 * MIB
    is_kept: bool = False
    open: list[BlobCache] = field(default_factory=list)

    def cache(self) -> BlobCache:
        """Open the cache as another process would."""
        cache = BlobCache(
            self.path,
            self.ha,
            self.server,
            limit_bytes=self.limit_bytes,
            interval_s=INTERVAL_S,
            is_kept=self.is_kept,
            clock=self.blobs.clock,
        )
        self.open.append(cache)
        return cache

    def put(self, data: bytes, job_id: str = "sales") -> BlobInfo:
        return self.server.put(data, job_id=job_id, use="library", owners=["job"])

    def is_cached(self, blob: BlobInfo) -> bool:
        return self.file_of(blob).exists()

    def file_of(self, blob: BlobInfo) -> Path:
        return self.path / "blobs" / blob.job_id / blob.blob_key

    def under_way(self) -> list[Path]:
        """Return the files that are being received."""
        folder = self.path / "blobs" / ".incoming"
        return list(folder.iterdir()) if folder.exists() else []


@contextmanager
def cache_world(root: Path) -> Iterator[CacheWorld]:
    """Yield a server and a factory of caches, which are closed after the block."""
    with blob_world(root) as blobs:
        server = CountedServer.like(blobs.server, blobs.clock)
        world = CacheWorld(blobs, server, root / "cache")
        try:
            yield world
        finally:
            for cache in world.open:
                cache.close()
            server.close()


def killed(folder: CacheFolder) -> None:
    """Release the locks of a process like its death, without any other clean-up."""
    folder._pins.release_all()
    folder._owner.close()


def references(cache: BlobCache, job_id: str, blob_key: str = JOB) -> int:
    """Return how often this process refers to a blob, or to all blobs of a job."""
    pin = cache.folder._pins._pins.get((job_id, blob_key))
    return 0 if pin is None else pin.count
