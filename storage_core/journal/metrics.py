"""Metrics of a journal for Prometheus, and spans through OpenTelemetry's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from opentelemetry import trace
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

PREFIX: Final = "lockgate_journal"

_SCOPE: Final = "lockgate.journal"
"""Name of OpenTelemetry's instrumentation scope."""

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MUTATIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class _Metrics:
    def __init__(self) -> None:
        by_journal = ("journal",)
        self.entries = Counter(f"{PREFIX}_entries", "Entries written", by_journal)
        self.group_size = Histogram(
            f"{PREFIX}_group_size", "Mutations of one transaction", by_journal, buckets=_MUTATIONS
        )
        self.write = Histogram(
            f"{PREFIX}_write_seconds",
            "One write transaction, until it is durable",
            by_journal,
            buckets=_SECONDS,
        )
        self.renewals = Counter(f"{PREFIX}_lease_renewals", "Leases renewed", by_journal)
        self.renew = Histogram(
            f"{PREFIX}_renew_seconds", "One renewal of all that a holder holds", by_journal, buckets=_SECONDS
        )
        self.waits = Counter(f"{PREFIX}_observer_waits", "Reads that waited for an observer that was behind")
        self.fallbacks = Counter(
            f"{PREFIX}_observer_fallbacks", "Reads at the primary because no observer was ready"
        )
        self.lag = Gauge(
            f"{PREFIX}_observer_lag_seconds",
            "How far an observer is behind, when last looked at",
            ("observer",),
            multiprocess_mode="mostrecent",
        )
        self.checkpoint = Gauge(
            f"{PREFIX}_checkpoint_timestamp_seconds",
            "When the newest checkpoint was made, by its store's clock; 0: there is none",
            by_journal,
            multiprocess_mode="mostrecent",
        )


@cache
def _metrics() -> _Metrics:
    """Create the metrics at the first use: a worker first chooses the files where they count."""
    return _Metrics()


def record_write(journal: str, *, entries: int, mutations: int, seconds: float) -> None:
    """Record one durable write transaction."""
    metrics = _metrics()
    metrics.entries.labels(journal).inc(entries)
    metrics.group_size.labels(journal).observe(mutations)
    metrics.write.labels(journal).observe(seconds)


def record_renewal(journal: str, *, leases: int, seconds: float) -> None:
    """Record one renewal of all leases of a holder."""
    _metrics().renewals.labels(journal).inc(leases)
    _metrics().renew.labels(journal).observe(seconds)


def record_observer_wait() -> None:
    """Record a read that waited for an observer to catch up."""
    _metrics().waits.inc()


def record_observer_fallback() -> None:
    """Record a read at the primary because no observer was available or had caught up."""
    _metrics().fallbacks.inc()


def record_observer_lag(observer: str, seconds: float) -> None:
    """Record an observer's lag."""
    _metrics().lag.labels(observer).set(seconds)


def record_checkpoint(journal: str, made_s: float | None) -> None:
    """Record when the newest checkpoint of a journal was made; None: there is none."""
    _metrics().checkpoint.labels(journal).set(made_s or 0)


def gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    """Return `lockgate_<name>`, read from a journal at each scrape; its first label is the journal's name."""
    return GaugeMetricFamily(f"lockgate_{name}", about, labels=["journal", *labels])


@contextmanager
def span(name: str, journal: str) -> Iterator[trace.Span]:
    """Trace one call of the journal."""
    tracer = trace.get_tracer(_SCOPE)
    with tracer.start_as_current_span(f"journal.{name}", attributes={"lockgate.journal": journal}) as began:
        yield began
