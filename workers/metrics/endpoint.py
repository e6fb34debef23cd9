"""Serve a worker's metrics at `LOCKGATE_WORKER_METRICS_PORT` (a bootstep)."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from celery import bootsteps, signals

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings, load_settings

LOG = logging.getLogger("lockgate.worker")


class MetricsEndpoint:
    """Serves the metrics of one worker and its pool at `http://host:port/metrics` until it is stopped.

    Raises:
        InvalidInputError: The address cannot be bound; another worker may use it.
    """

    def __init__(self, settings: Settings, app: Any) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        from lockgate.workers.metrics.counts import QueueLengths, count_in_folder

        host, port = settings.worker_metrics_host, settings.worker_metrics_port
        try:
            self._server, self._thread = start_http_server(port, host, registry := CollectorRegistry())
        except OSError as error:
            raise InvalidInputError(
                f"LOCKGATE_WORKER_METRICS_HOST={host} LOCKGATE_WORKER_METRICS_PORT={port}: {error.strerror}; "
                "the worker was not started; give each worker of a machine a different port"
            ) from None
        self._pid = os.getpid()
        registry.register(QueueLengths(app))
        # After the port is bound: its owner owns the folder, too.
        registry.register(count_in_folder(settings.home_dir / "metrics" / f"{socket.gethostname()}-{port}"))
        signals.worker_process_init.connect(self._close_inherited_socket, weak=False)
        LOG.info("metrics: http://%s:%d/metrics", host, port)

    def stop(self) -> None:
        """Release the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _close_inherited_socket(self, **_: Any) -> None:
        """Close the pool process's copy of the socket, which would keep the port after the worker's end."""
        if os.getpid() != self._pid:  # the pool `solo` sends the same signal in the worker itself
            self._server.socket.close()


class MetricsStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Serves a worker's metrics from before its pool starts until its end, if a port is configured."""

    def create(self, parent: Any) -> MetricsEndpoint | None:
        """Start the endpoint."""
        settings = load_settings()
        return MetricsEndpoint(settings, parent.app) if settings.worker_metrics_port else None

    def start(self, parent: Any) -> None:
        """Do nothing: `create` has started the endpoint."""
