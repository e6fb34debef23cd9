"""What a blob server tells Prometheus: requests, bytes and seconds, by verb and outcome."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from lockgate.storage_core.journal import metrics

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Figures:
    """Those of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "lockgate_blobs_requests", "Requests answered", ["verb", "outcome"], registry=self._registry
        )
        self._bytes = Counter(
            "lockgate_blobs_bytes", "Bytes of bodies", ["verb", "direction"], registry=self._registry
        )
        self._seconds = Histogram(
            "lockgate_blobs_request_seconds",
            "A request, until its answer is sent",
            ["verb", "outcome"],
            buckets=_SECONDS,
            registry=self._registry,
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
        self._requests.labels(verb, outcome).inc()
        self._seconds.labels(verb, outcome).observe(seconds)
        self._bytes.labels(verb, "in").inc(came)
        self._bytes.labels(verb, "out").inc(went)

    def exposition(self) -> bytes:
        """Return them as Prometheus reads them, with those of this process's journals."""
        return generate_latest(self._registry) + generate_latest(metrics.registry())
