"""Metrics of a server: requests, bytes and seconds, by route and outcome."""

from __future__ import annotations

from functools import cache
from typing import Final

from prometheus_client import Counter, Histogram, generate_latest

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Metrics of all applications of one kind in this process.

    Args:
        prefix: Beginning of their names.
    """

    def __init__(self, prefix: str) -> None:
        self._requests, self._bytes, self._seconds = _created(prefix)

    def record(self, route: str, outcome: str, *, seconds: float, received: int, sent: int) -> None:
        """Record a request.

        Args:
            route: Name of the route.
            outcome: `ok`, `refused`, `failed`, or `gone` if the client disconnected.
            seconds: Time from the headers to the end of the response.
            received: Bytes of the request body.
            sent: Bytes of the response body.
        """
        self._requests.labels(route, outcome).inc()
        self._seconds.labels(route, outcome).observe(seconds)
        self._bytes.labels(route, "in").inc(received)
        self._bytes.labels(route, "out").inc(sent)

    def exposition(self) -> bytes:
        """Return the metrics of this process in the format of Prometheus."""
        return generate_latest()


@cache
def _created(prefix: str) -> tuple[Counter, Counter, Histogram]:
    labels = ("verb", "outcome")
    return (
        Counter(f"{prefix}_requests", "Requests answered", labels),
        Counter(f"{prefix}_bytes", "Bytes of bodies", ("verb", "direction")),
        Histogram(
            f"{prefix}_request_seconds", "A request, until its answer is sent", labels, buckets=_SECONDS
        ),
    )
