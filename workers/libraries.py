"""Celery tasks that run with their job's libraries, and the step of a worker that keeps its cache of them."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from celery import Task, bootsteps

from lockgate.storage_core.blobs.cache.directory import CacheFolder
from lockgate.storage_core.blobs.cache.process_cache import cache_dir, close_caches, configured_cache
from lockgate.storage_core.blobs.libraries.library import Libraries, LibraryCache
from lockgate.storage_core.blobs.protocol import Artefacts
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import Settings, load_settings

HEADER: Final = "lockgate-artefacts"
"""Of a task's message: the handle of what its job was uploaded with."""

LOG = logging.getLogger("lockgate.worker")


def shipping(artefacts: Artefacts | Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that send a job's libraries with a task of class `LibraryTask`.

    Args:
        artefacts: Of the job, or their handle.
    """
    handle = artefacts.handle() if isinstance(artefacts, Artefacts) else dict(artefacts)
    return {HEADER: handle}


@contextmanager
def job_libraries(artefacts: Artefacts | Mapping[str, Any]) -> Iterator[Libraries]:
    """Hold a job's libraries on this process's import path until the block ends; import within it.

    Args:
        artefacts: Of the job, or their handle.

    Raises:
        LockgateError: As `LibraryCache.importing` does.
    """
    known = artefacts if isinstance(artefacts, Artefacts) else Artefacts.of_handle(artefacts)
    with LibraryCache(configured_cache(load_settings())).importing(known) as libraries:
        yield libraries


class LibraryTask(Task):  # type: ignore[misc]
    """A task that imports what its message says was shipped: `task.apply_async(…, headers=shipping(…))`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task with its job's libraries, if it has any."""
        handle = (self.request.headers or {}).get(HEADER)
        if self.request.called_directly or handle is None:
            return super().__call__(*args, **kwargs)
        with job_libraries(handle):
            return self.run(*args, **kwargs)


class KeptCache:
    """The folder of a worker's cache, which its processes share, from the worker's start to its end."""

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
        """Evict from now on, each interval."""
        self._evicting.start()

    def stop(self) -> None:
        """Evict no more; processes of the pool may still read."""
        self._stopping.set()

    def close(self) -> None:
        """Delete the folder, unless another worker of this machine uses it; the pool has ended."""
        self.stop()
        close_caches()
        self._folder.close()

    def _evict(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._folder.evict()
            except LockgateError as error:
                LOG.warning("blob cache: %s", error)


class KeepCache(bootsteps.StartStopStep):  # type: ignore[misc]
    """Opens a worker's cache before its pool has processes, and deletes it as the worker exits."""

    def create(self, parent: Any) -> KeptCache | None:  # noqa: ARG002 - Celery's
        """Take over what a worker that was killed has left; a task says it if there can be no cache."""
        try:
            return KeptCache(load_settings())
        except LockgateError as error:
            LOG.warning("blob cache: %s; tasks that need blobs will fail", error)
            return None
