"""Metrics of a blob server: requests, bytes and seconds, by verb and outcome."""

from __future__ import annotations

from typing import Final

from opentelemetry import metrics
from prometheus_client import generate_latest

from lockgate.storage_core.prometheus import served_metrics

_SCOPE: Final = "lockgate.blobs"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Figures:
    """Metrics of the applications of this process, together."""

    def __init__(self) -> None:
        served_metrics()
        meter = metrics.get_meter(_SCOPE)
        self._requests = meter.create_counter(f"{_SCOPE}.requests", description="Requests answered")
        self._bytes = meter.create_counter(f"{_SCOPE}.bytes", description="Bytes of bodies")
        self._seconds = meter.create_histogram(
            f"{_SCOPE}.request",
            unit="s",
            description="A request, until its answer is sent",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def answered(self, verb: str, outcome: str, *, seconds: float, came: int, went: int) -> None:
        """Count a request.

        Args:
            verb: What was asked for: the name of the route.
            outcome: `ok`, `refused`, `failed`, or `gone`: the client went away.
            seconds: From its headers to the end of its answer.
            came: Bytes of its body.
            went: Bytes of its answer's body.
        """
        of = {"verb": verb, "outcome": outcome}
        self._requests.add(1, of)
        self._seconds.record(seconds, of)
        self._bytes.add(came, {"verb": verb, "direction": "in"})
        self._bytes.add(went, {"verb": verb, "direction": "out"})

    def exposition(self) -> bytes:
        """Return the metrics of this process as Prometheus reads them."""
        return generate_latest(served_metrics())
