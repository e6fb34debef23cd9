"""What a journal tells of itself: to Prometheus through `REGISTRY`, and the same figures to OpenTelemetry.

Only the API of OpenTelemetry is used: without an SDK it does nothing. `exposition.py` serves Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Final

import prometheus_client
from opentelemetry import metrics, trace
from opentelemetry.metrics import _Gauge as TelemetryGauge  # exported under this name only
from prometheus_client import CollectorRegistry

REGISTRY: Final = CollectorRegistry()
"""Of Lockgate alone: what else runs in this process keeps its own."""

_SCOPE: Final = "lockgate.journal"
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MUTATIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@cache
def _meter() -> metrics.Meter:
    """Ask for it at the first use: OpenTelemetry reads the environment then."""
    return metrics.get_meter(_SCOPE)


class _Counter:
    """What only grows, in both; rates are made from it where it is read."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self._name, self._about = name, about
        self._prometheus = prometheus_client.Counter(
            f"lockgate_journal_{name}", about, labels, registry=REGISTRY
        )

    def add(self, amount: int, **labels: str) -> None:
        counted = self._prometheus.labels(**labels) if labels else self._prometheus
        counted.inc(amount)
        self._telemetry.add(amount, labels)

    @cached_property
    def _telemetry(self) -> metrics.Counter:
        return _meter().create_counter(f"{_SCOPE}.{self._name}", description=self._about)


class _Histogram:
    """How a figure is spread, in both."""

    def __init__(self, name: str, about: str, buckets: Sequence[float], *labels: str, unit: str) -> None:
        self._name, self._about, self._buckets, self._unit = name, about, buckets, unit
        self._prometheus = prometheus_client.Histogram(
            f"lockgate_journal_{name}", about, labels, buckets=buckets, registry=REGISTRY
        )

    def see(self, figure: float, **labels: str) -> None:
        self._prometheus.labels(**labels).observe(figure)
        self._telemetry.record(figure, labels)

    @cached_property
    def _telemetry(self) -> metrics.Histogram:
        return _meter().create_histogram(
            f"{_SCOPE}.{self._name.removesuffix('_seconds')}",
            unit=self._unit,
            description=self._about,
            explicit_bucket_boundaries_advisory=self._buckets,
        )


class _Gauge:
    """What goes up and down, in both."""

    def __init__(self, name: str, about: str, *labels: str, unit: str) -> None:
        self._name, self._about, self._unit = name, about, unit
        self._prometheus = prometheus_client.Gauge(
            f"lockgate_journal_{name}", about, labels, registry=REGISTRY
        )

    def set(self, figure: float, **labels: str) -> None:
        self._prometheus.labels(**labels).set(figure)
        self._telemetry.set(figure, labels)

    @cached_property
    def _telemetry(self) -> TelemetryGauge:
        return _meter().create_gauge(
            f"{_SCOPE}.{self._name.removesuffix('_seconds')}", unit=self._unit, description=self._about
        )


_ENTRIES: Final = _Counter("entries", "Entries written", "journal")
_GROUP: Final = _Histogram(
    "group_size", "Mutations of one transaction", _MUTATIONS, "journal", unit="{mutation}"
)
_WRITE: Final = _Histogram(
    "write_seconds", "One write transaction, until it is durable", _SECONDS, "journal", unit="s"
)
_RENEWALS: Final = _Counter("lease_renewals", "Leases renewed", "journal")
_RENEW: Final = _Histogram(
    "renew_seconds", "One renewal of all that a holder holds", _SECONDS, "journal", unit="s"
)
_WAITS: Final = _Counter("observer_waits", "Reads that waited for an observer that was behind")
_FALLBACKS: Final = _Counter("observer_fallbacks", "Reads that went to the primary for want of an observer")
_LAG: Final = _Gauge(
    "observer_lag_seconds", "How far an observer is behind, when last looked at", "observer", unit="s"
)


def wrote(journal: str, *, entries: int, mutations: int, seconds: float) -> None:
    """Note one write transaction that is durable.

    Args:
        journal: Its name.
        entries: That it added.
        mutations: That it was asked for: those refused and those repeated are among them.
        seconds: From its first statement until it was durable.
    """
    _ENTRIES.add(entries, journal=journal)
    _GROUP.see(mutations, journal=journal)
    _WRITE.see(seconds, journal=journal)


def renewed(journal: str, *, leases: int, seconds: float) -> None:
    """Note one renewal of all that a holder holds."""
    _RENEWALS.add(leases, journal=journal)
    _RENEW.see(seconds, journal=journal)


def observer_waited() -> None:
    """Note a read that waited for an observer to catch up."""
    _WAITS.add(1)


def observer_fell_back() -> None:
    """Note a read that went to the primary, for no observer was there or had caught up."""
    _FALLBACKS.add(1)


def observer_lag(observer: str, seconds: float) -> None:
    """Note how far an observer is behind.

    Args:
        observer: Its URL as people may see it, without a password.
        seconds: 0 when it has caught up.
    """
    _LAG.set(seconds, observer=observer)


@contextmanager
def span(name: str, journal: str) -> Iterator[trace.Span]:
    """Trace one call of the journal.

    Args:
        name: Such as `write`.
        journal: Its name.
    """
    tracer = trace.get_tracer(_SCOPE)
    with tracer.start_as_current_span(f"journal.{name}", attributes={"lockgate.journal": journal}) as began:
        yield began
