"""Run Celery tasks with their job's libraries, and hold a worker's cache of them (a bootstep)."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from celery import Task, bootsteps

from lockgate.storage_core.blobs.blob_protocol import Artefacts
from lockgate.storage_core.blobs.cache.directory import CacheFolder
from lockgate.storage_core.blobs.cache.process_cache import cache_dir, close_caches, configured_cache
from lockgate.storage_core.blobs.library import Libraries, LibraryCache
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import Settings, load_settings

HEADER: Final = "lockgate-artefacts"
"""Header of a task's message: the handle of its job's artefacts."""

LOG = logging.getLogger("lockgate.worker")


def library_headers(artefacts: Artefacts | Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that a message to a `LibraryTask` needs.

    Args:
        artefacts: Artefacts of the job, or their handle.
    """
    handle = artefacts.handle() if isinstance(artefacts, Artefacts) else dict(artefacts)
    return {HEADER: handle}


@contextmanager
def job_libraries(artefacts: Artefacts | Mapping[str, Any]) -> Iterator[Libraries]:
    """Hold a job's libraries on this process's import path during the block; import them within it.

    Args:
        artefacts: Artefacts of the job, or their handle.

    Raises:
        LockgateError: See `LibraryCache.importing`.
    """
    opened = artefacts if isinstance(artefacts, Artefacts) else Artefacts.of_handle(artefacts)
    with LibraryCache(configured_cache(load_settings())).importing(opened) as libraries:
        yield libraries


class LibraryTask(Task):  # type: ignore[misc]
    """A task that runs with its job's libraries: `task.apply_async(…, headers=library_headers(…))`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task with its job's libraries, if it has any."""
        handle = (self.request.headers or {}).get(HEADER)
        if self.request.called_directly or handle is None:
            return super().__call__(*args, **kwargs)
        with job_libraries(handle):
            return self.run(*args, **kwargs)


class WorkerCache:
    """The cache folder that a worker's processes share while the worker runs."""

    def __init__(self, settings: Settings) -> None:
        self._folder = CacheFolder(
            cache_dir(settings),
            limit_bytes=settings.blob_cache_bytes,
            interval_s=settings.retention_interval_s,
        )
        self._every_s = settings.retention_interval_s
        self._stopping = threading.Event()
        self._evicting = threading.Thread(target=self._evict, name="lockgate-blob-cache", daemon=True)
        atexit.register(self.close)

    def start(self) -> None:
        """Start evicting, once each interval."""
        self._evicting.start()

    def stop(self) -> None:
        """Stop evicting; the pool's processes may still read."""
        self._stopping.set()

    def close(self) -> None:
        """Delete the folder after the pool has ended, unless another worker of this machine uses it."""
        self.stop()
        close_caches()
        self._folder.close()

    def _evict(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._folder.evict()
            except LockgateError as error:
                LOG.warning("blob cache: %s", error)


class WorkerCacheStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Opens a worker's cache before its pool has processes, and deletes it as the worker exits."""

    settings: Settings | None = None
    """Settings of the application; None: those of the environment."""

    def create(self, parent: Any) -> WorkerCache | None:  # noqa: ARG002 - Celery's
        """Open the cache, including files that a killed worker left; without one, tasks that need it fail."""
        try:
            return WorkerCache(self.settings or load_settings())
        except LockgateError as error:
            LOG.warning("blob cache: %s; tasks that need blobs will fail", error)
            return None
