"""The cache of this process, shared by all code that reads blobs."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.cache.blob_cache import BlobCache
from lockgate.storage_core.blobs.open_blobs import ha_blobs, open_blobs
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.settings import Settings


def configured_cache(settings: Settings) -> BlobCache:
    """Return the open cache of this process. It is shared: the caller does not close it.

    Its directory outlives the process, for the retry of a task on this machine. A Celery worker deletes it
    when it stops.

    Args:
        settings: `blob_cache_dir`, `blob_cache_bytes`, `retention_interval_s`, and those of `open_blobs`.

    Raises:
        InvalidInputError: The settings for the blob server are invalid.
        StoreUnavailableError: The directory cannot be created: the disk is full.
    """
    return _CACHES.get(settings)


def cache_dir(settings: Settings) -> Path:
    """Return the directory of the cache."""
    return settings.blob_cache_dir or settings.home_dir / "blob-cache"


def close_caches() -> None:
    """Close the caches that `configured_cache` has opened in this process; the next call opens a new one."""
    _CACHES.close()


@contextmanager
def _open_cache(settings: Settings) -> Iterator[BlobCache]:
    with (
        open_blobs(settings) as origin,
        BlobCache(
            cache_dir(settings),
            ha_blobs(settings),
            origin,
            limit_bytes=settings.blob_cache_bytes,
            interval_s=settings.retention_interval_s,
            is_kept=True,
        ) as cache,
    ):
        cache.evict()  # for earlier processes, which ended without evicting
        yield cache


class _ProcessCaches(Forkable):
    """Open caches of this process, by their settings; a fork keeps using them."""

    def __init__(self) -> None:
        self._caches: list[tuple[Settings, BlobCache]] = []
        self._stack = ExitStack()
        self._lock = threading.Lock()
        FORKS.register(self)

    def get(self, settings: Settings) -> BlobCache:
        with self._lock:
            for opened, cache in self._caches:
                if opened == settings:
                    return cache
            cache = self._stack.enter_context(_open_cache(settings))
            self._caches.append((settings, cache))
            return cache

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._caches.clear()
            self._stack.close()


_CACHES: Final = _ProcessCaches()
atexit.register(close_caches)
