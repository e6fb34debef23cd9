"""Metrics of a server: requests, bytes and seconds, by route and outcome."""

from __future__ import annotations

from typing import Final

from opentelemetry import metrics
from prometheus_client import generate_latest

from lockgate.storage_core.prometheus import served_metrics

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Metrics of all applications of one kind in this process.

    Args:
        scope: Beginning of their names.
    """

    def __init__(self, scope: str) -> None:
        served_metrics()
        meter = metrics.get_meter(scope)
        self._requests = meter.create_counter(f"{scope}.requests", description="Requests answered")
        self._bytes = meter.create_counter(f"{scope}.bytes", description="Bytes of bodies")
        self._seconds = meter.create_histogram(
            f"{scope}.request",
            unit="s",
            description="A request, until its answer is sent",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def record(self, route: str, outcome: str, *, seconds: float, received: int, sent: int) -> None:
        """Record a request.

        Args:
            route: Name of the route.
            outcome: `ok`, `refused`, `failed`, or `gone` if the client disconnected.
            seconds: Time from the headers to the end of the response.
            received: Bytes of the request body.
            sent: Bytes of the response body.
        """
        labels = {"verb": route, "outcome": outcome}
        self._requests.add(1, labels)
        self._seconds.record(seconds, labels)
        self._bytes.add(received, {"verb": route, "direction": "in"})
        self._bytes.add(sent, {"verb": route, "direction": "out"})

    def exposition(self) -> bytes:
        """Return the metrics of this process in the format of Prometheus."""
        return generate_latest(served_metrics())
