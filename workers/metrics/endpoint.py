"""The step of a worker's start that serves its figures, where `LOCKGATE_WORKER_METRICS_PORT` says so."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from celery import bootsteps, signals

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings, load_settings

LOG = logging.getLogger("lockgate.worker")


class ServedFigures:
    """The endpoint of one worker, its pool included, at `http://host:port/metrics` until it is stopped.

    Raises:
        InvalidInputError: The address cannot be served: another worker may have it.
    """

    def __init__(self, settings: Settings) -> None:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - only who serves

        from lockgate.workers.metrics.figures import share_in  # noqa: PLC0415

        host, port = settings.worker_metrics_host, settings.worker_metrics_port
        try:
            self._server, self._thread = start_http_server(port, host, registry := CollectorRegistry())
        except OSError as error:
            raise InvalidInputError(
                f"LOCKGATE_WORKER_METRICS_HOST={host} LOCKGATE_WORKER_METRICS_PORT={port}: {error.strerror}; "
                "the worker was not started; give each worker of a machine a port of its own"
            ) from None
        self._served_by = os.getpid()
        # Only now: who has the port has the folder.
        registry.register(share_in(settings.home_dir / "metrics" / f"{socket.gethostname()}-{port}"))
        signals.worker_process_init.connect(self._leave_port, weak=False)
        LOG.info("figures: http://%s:%d/metrics", host, port)

    def stop(self) -> None:
        """Give the port back."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _leave_port(self, **_: Any) -> None:
        """Close what a process of the pool has inherited: it would keep the port beyond the worker's end."""
        if os.getpid() != self._served_by:  # a pool that is the worker itself, `solo`, says the same of it
            self._server.socket.close()


class ServeFigures(bootsteps.StartStopStep):  # type: ignore[misc]
    """Serves a worker's figures from before its pool has processes until its end; without a port, nothing."""

    def create(self, parent: Any) -> ServedFigures | None:  # noqa: ARG002 - Celery's
        """Serve them."""
        settings = load_settings()
        return ServedFigures(settings) if settings.worker_metrics_port else None

    def start(self, parent: Any) -> None:
        """Do nothing more: they have been served since it was created."""
