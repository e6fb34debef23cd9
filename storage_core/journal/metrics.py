"""What a journal tells of itself: to Prometheus through `registry()`, and the same figures to OpenTelemetry.

Only the API of OpenTelemetry is used: without an SDK it does nothing. `exposition.py` serves Prometheus.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import prometheus_client
from opentelemetry import metrics, trace
from opentelemetry.metrics import _Gauge as TelemetryGauge  # exported under this name only
from prometheus_client import CollectorRegistry, values

SCOPE: Final = "lockgate.journal"
"""The name under which OpenTelemetry hears of it; Prometheus writes it with `_`."""

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MUTATIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@cache
def meter() -> metrics.Meter:
    """Return OpenTelemetry's, asked for at the first use: it reads the environment then."""
    return metrics.get_meter(SCOPE)


class _Counter:
    """What only grows, in both; rates are made from it where it is read."""

    def __init__(self, registry: CollectorRegistry, name: str, about: str, *labels: str) -> None:
        self._name, self._about = name, about
        self._prometheus = prometheus_client.Counter(
            f"lockgate_journal_{name}", about, labels, registry=registry
        )

    def add(self, amount: int, **labels: str) -> None:
        counter = self._prometheus.labels(**labels) if labels else self._prometheus
        counter.inc(amount)
        _telemetry_counter(self._name, self._about).add(amount, labels)


class _Histogram:
    """How a figure is spread, in both."""

    def __init__(
        self, registry: CollectorRegistry, name: str, about: str, buckets: Sequence[float], unit: str
    ) -> None:
        self._name, self._about, self._buckets, self._unit = name, about, tuple(buckets), unit
        self._prometheus = prometheus_client.Histogram(
            f"lockgate_journal_{name}", about, ["journal"], buckets=buckets, registry=registry
        )

    def see(self, figure: float, *, journal: str) -> None:
        self._prometheus.labels(journal).observe(figure)
        telemetry = _telemetry_histogram(self._name, self._about, self._unit, self._buckets)
        telemetry.record(figure, {"journal": journal})


class _Gauge:
    """What goes up and down, in both; in seconds."""

    def __init__(self, registry: CollectorRegistry, name: str, about: str, label: str) -> None:
        self._name, self._about, self._label = name, about, label
        self._prometheus = prometheus_client.Gauge(
            f"lockgate_journal_{name}", about, [label], registry=registry, multiprocess_mode="mostrecent"
        )

    def set(self, figure: float, of: str) -> None:
        self._prometheus.labels(of).set(figure)
        _telemetry_gauge(self._name, self._about).set(figure, {self._label: of})


@cache
def _telemetry_counter(name: str, about: str) -> metrics.Counter:
    return meter().create_counter(f"{SCOPE}.{name}", description=about)


@cache
def _telemetry_histogram(name: str, about: str, unit: str, buckets: tuple[float, ...]) -> metrics.Histogram:
    return meter().create_histogram(
        f"{SCOPE}.{name.removesuffix('_seconds')}",
        unit=unit,
        description=about,
        explicit_bucket_boundaries_advisory=buckets,
    )


@cache
def _telemetry_gauge(name: str, about: str) -> TelemetryGauge:
    return meter().create_gauge(f"{SCOPE}.{name.removesuffix('_seconds')}", unit="s", description=about)


class _Figures:
    """Those of one process. Its forks count their own, and none of the parent's locks is theirs."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from nothing."""
        registry = self.registry = CollectorRegistry()
        self.entries = _Counter(registry, "entries", "Entries written", "journal")
        self.group_size = _Histogram(
            registry, "group_size", "Mutations of one transaction", _MUTATIONS, "{mutation}"
        )
        self.write_s = _Histogram(
            registry, "write_seconds", "One write transaction, until it is durable", _SECONDS, "s"
        )
        self.renewals = _Counter(registry, "lease_renewals", "Leases renewed", "journal")
        self.renew_s = _Histogram(
            registry, "renew_seconds", "One renewal of all that a holder holds", _SECONDS, "s"
        )
        self.waits = _Counter(registry, "observer_waits", "Reads that waited for an observer that was behind")
        self.fallbacks = _Counter(
            registry, "observer_fallbacks", "Reads that went to the primary for want of an observer"
        )
        self.lag_s = _Gauge(
            registry, "observer_lag_seconds", "How far an observer is behind, when last looked at", "observer"
        )


_HERE: Final = _Figures()
os.register_at_fork(after_in_child=_HERE.begin)


def registry() -> CollectorRegistry:
    """Return this process's figures as Prometheus collects them: Lockgate's alone."""
    return _HERE.registry


def share_figures(folder: Path) -> None:
    """Have this process and its forks count in files of a folder: `MultiProcessCollector` adds them up.

    Prometheus' library would have this said before it is imported, by a variable of the environment.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    if values.ValueClass is values.MutexValue:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    _HERE.begin()


def wrote(journal: str, *, entries: int, mutations: int, seconds: float) -> None:
    """Note one write transaction that is durable.

    Args:
        journal: Its name.
        entries: That it added.
        mutations: That it was asked for: those refused and those repeated are among them.
        seconds: From its first statement until it was durable.
    """
    _HERE.entries.add(entries, journal=journal)
    _HERE.group_size.see(mutations, journal=journal)
    _HERE.write_s.see(seconds, journal=journal)


def renewed(journal: str, *, leases: int, seconds: float) -> None:
    """Note one renewal of all that a holder holds."""
    _HERE.renewals.add(leases, journal=journal)
    _HERE.renew_s.see(seconds, journal=journal)


def observer_waited() -> None:
    """Note a read that waited for an observer to catch up."""
    _HERE.waits.add(1)


def observer_fell_back() -> None:
    """Note a read that went to the primary, for no observer was there or had caught up."""
    _HERE.fallbacks.add(1)


def observer_lag(observer: str, seconds: float) -> None:
    """Note how far an observer is behind.

    Args:
        observer: Its URL as people may see it, without a password.
        seconds: 0 when it has caught up.
    """
    _HERE.lag_s.set(seconds, observer)


@contextmanager
def span(name: str, journal: str) -> Iterator[trace.Span]:
    """Trace one call of the journal.

    Args:
        name: Such as `write`.
        journal: Its name.
    """
    tracer = trace.get_tracer(SCOPE)
    with tracer.start_as_current_span(f"journal.{name}", attributes={"lockgate.journal": journal}) as began:
        yield began
