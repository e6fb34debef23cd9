"""A third-party application with large messages as blobs, over an in-memory broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from celery import Celery, Task
from celery.contrib.testing.worker import start_worker

from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.registry.blob_rows import Blob, Reference
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.settings import Settings
from lockgate.workers.offload import install_offload
from tests.support.workers.celery_worker import wait_until

BIG = "x" * 5_000
SMALL = "y" * 50
PATIENCE_S = 120

NUMBERS = itertools.count()


def length(value: str) -> int:
    return len(value)


def got(sent: Any) -> Any:
    return sent.get(timeout=PATIENCE_S, interval=0.01)


@dataclass
class Guest:
    """A third-party application and its blobs."""

    app: Celery
    settings: Settings
    calls: list[Any] = field(default_factory=list)

    @property
    def blobs(self) -> list[Blob]:
        return list(configured_cache(self.settings).origin.page())

    @property
    def references(self) -> list[Reference]:
        return list(configured_cache(self.settings).origin.references())

    @property
    def owners(self) -> list[str]:
        return [reference.owner for reference in self.references]

    def arguments_are_let_go(self) -> None:
        wait_until(lambda: all(":result:" in owner for owner in self.owners), PATIENCE_S)

    def task(self, run: Any, **options: Any) -> Task:
        if run.__name__ == "<lambda>":
            run.__name__ = f"task{next(NUMBERS)}"
        return self.app.task(name=f"{self.app.main}.{run.__name__}", shared=False, **options)(run)

    @contextmanager
    def working(self) -> Iterator[None]:
        with start_worker(self.app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
            yield


@contextmanager
def application(settings: Settings, name: str = "") -> Iterator[Guest]:
    """Create an application with its own queue: there is one broker per process."""
    name = name or f"guest{next(NUMBERS)}"
    app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        task_default_queue=name,
        broker_transport_options={"polling_interval": 0.01},
        task_acks_late=True,
    )
    install_offload(app, settings)
    yield Guest(app, settings)
    app.close()


def files_of(guest: Guest) -> LocalBlobs:
    """Return the blob server's own files."""
    return configured_cache(guest.settings).origin.stores.local  # type: ignore[attr-defined,no-any-return]
