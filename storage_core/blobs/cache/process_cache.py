"""The cache that the settings name: one in a process, shared by all that read blobs."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.cache.cache import BlobCache
from lockgate.storage_core.blobs.open_blobs import ha_blobs, open_blobs
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.settings import Settings


def configured_cache(settings: Settings) -> BlobCache:
    """Return this process's cache, open; it is shared and stays open: whoever asks does not close it.

    Its folder outlives this process, for a task that is tried again on this machine; a Celery worker that
    stops deletes it.

    Args:
        settings: `blob_cache_dir`, `blob_cache_bytes`, `retention_interval_s`, and what `open_blobs` takes.

    Raises:
        InvalidInputError: The settings name no blob server that can be.
        StoreUnavailableError: The folder cannot be made: the disk is full.
    """
    return _OPENED.get(settings)


@contextmanager
def open_cache(
    settings: Settings, *, is_kept: bool = False, clock: Clock | None = None
) -> Iterator[BlobCache]:
    """Hold a cache of one's own, and its blob server; arguments as for `BlobCache`, errors as above."""
    with (
        open_blobs(settings, clock=clock) as origin,
        BlobCache(
            cache_dir(settings),
            ha_blobs(settings),
            origin,
            limit_bytes=settings.blob_cache_bytes,
            interval_s=settings.retention_interval_s,
            is_kept=is_kept,
            clock=clock,
        ) as cache,
    ):
        yield cache


def cache_dir(settings: Settings) -> Path:
    """Return the folder of the cache."""
    return settings.blob_cache_dir or settings.home_dir / "blob-cache"


def close_caches() -> None:
    """Close what `configured_cache` has opened in this process; who asks again opens it anew."""
    _OPENED.close()


class _Opened(Forkable):
    """The caches of this process, by their settings; a fork goes on with them as its own."""

    def __init__(self) -> None:
        self._caches: dict[str, BlobCache] = {}
        self._open = ExitStack()
        self._opening = threading.Lock()
        FORKS.register(self)

    def get(self, settings: Settings) -> BlobCache:
        named = settings.model_dump_json()
        with self._opening:
            if named not in self._caches:
                cache = self._open.enter_context(open_cache(settings, is_kept=True))
                cache.evict()  # for processes before this one, that were ended before they could
                self._caches[named] = cache
            return self._caches[named]

    def after_fork_in_child(self) -> None:
        self._opening = threading.Lock()

    def close(self) -> None:
        with self._opening:
            self._caches.clear()
            self._open.close()


_OPENED: Final = _Opened()
atexit.register(close_caches)
