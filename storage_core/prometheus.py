"""Serve to Prometheus what Lockgate records through OpenTelemetry's API.

A `MeterProvider` over prometheus_client, whose processes can count together: a Celery worker's pool has many.
OpenTelemetry's own exporter for Prometheus cannot add up processes: see
docs/internals/adr/0018-one-metrics-api.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import prometheus_client
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import _Gauge as Gauge  # exported under this name only
from prometheus_client import CollectorRegistry, values
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_SCOPES: Final = "lockgate."
_UNITS: Final = {"s": "_seconds"}

M = TypeVar("M", prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram)
Create = Callable[[str, list[str], CollectorRegistry], M]


def served_metrics() -> CollectorRegistry:
    """Return the metrics of this process for Prometheus; they are recorded from the first call on.

    Where the program has set a `MeterProvider` of its own, Lockgate's metrics go there, and the program's
    registry for Prometheus is returned. OpenTelemetry then logs that it keeps the program's.
    """
    provider = _provider()
    return provider.registry if metrics.get_meter_provider() is provider else prometheus_client.REGISTRY


def count_in(folder: Path) -> None:
    """Let this process and its forks count in files of a folder, which `MultiProcessCollector` adds up.

    prometheus_client expects the variable in the environment before its import.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    if values.ValueClass is values.MutexValue:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    served_metrics()
    _provider().reset()


@cache
def _provider() -> _Provider:
    """Create the provider of this process, and set it unless the program has set another."""
    provider = _Provider()
    os.register_at_fork(after_in_child=provider.reset)
    metrics.get_meter_provider()  # takes the one that the environment names
    metrics.set_meter_provider(provider)
    return provider


class _Provider(metrics.MeterProvider):
    """Meters of Lockgate's scopes. Other libraries' metrics are not recorded."""

    def __init__(self) -> None:
        self._instruments: dict[str, _Instrument[Any]] = {}
        self._observed: dict[str, Collector] = {}
        self.reset()

    def reset(self) -> None:
        """Count from zero: a fork counts its own, and the parent's threads may hold the locks."""
        self._creating = threading.Lock()
        self.registry = CollectorRegistry()
        for instrument in tuple(self._instruments.values()):
            instrument.reset(self.registry)
        for collector in tuple(self._observed.values()):
            self.registry.register(collector)

    def get_meter(self, name: str, *_: object, **__: object) -> metrics.Meter:
        """Return a meter; one that does nothing for a scope that is not Lockgate's."""
        return _Meter(name, self) if name.startswith(_SCOPES) else metrics.NoOpMeter(name)

    def instrument(self, name: str, unit: str, create: Create[M]) -> _Instrument[M]:
        """Return the instrument of that name, created at the first call."""
        with self._creating:
            shown = _shown(name, unit)
            if shown not in self._instruments:
                self._instruments[shown] = _Instrument(shown, create, self.registry)
            return self._instruments[shown]

    def observe(self, name: str, collector: Collector) -> None:
        """Register what is asked at each collection."""
        self._observed[name] = collector
        self.registry.register(collector)


class _Meter(metrics.NoOpMeter):
    """Creates the instruments that Lockgate uses."""

    def __init__(self, name: str, provider: _Provider) -> None:
        super().__init__(name)
        self._provider = provider

    def create_counter(self, name: str, unit: str = "", description: str = "") -> metrics.Counter:
        return _Counter(
            self._provider.instrument(
                name,
                unit,
                lambda shown, labels, to: prometheus_client.Counter(shown, description, labels, registry=to),
            ),
        )

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Gauge:
        return _Gauge(
            self._provider.instrument(
                name,
                unit,
                lambda shown, labels, to: prometheus_client.Gauge(
                    shown, description, labels, registry=to, multiprocess_mode="mostrecent"
                ),
            ),
        )

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> metrics.Histogram:
        buckets = explicit_bucket_boundaries_advisory or prometheus_client.Histogram.DEFAULT_BUCKETS
        return _Histogram(
            self._provider.instrument(
                name,
                unit,
                lambda shown, labels, to: prometheus_client.Histogram(
                    shown, description, labels, buckets=buckets, registry=to
                ),
            ),
        )

    def create_observable_gauge(
        self,
        name: str,
        callbacks: Sequence[metrics.CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> metrics.ObservableGauge:
        shown = _shown(name, unit)
        self._provider.observe(shown, _Observed(shown, description, callbacks or ()))
        return super().create_observable_gauge(name, callbacks, unit, description)


class _Instrument(Generic[M]):
    """One metric of prometheus_client, created with the labels of its first figure."""

    def __init__(self, name: str, create: Create[M], registry: CollectorRegistry) -> None:
        self._name = name
        self._create: Create[M] = create
        self.reset(registry)

    def reset(self, registry: CollectorRegistry) -> None:
        """Begin without figures, in another registry."""
        self._creating = threading.Lock()
        self._metric: M | None = None
        self._registry = registry

    def of(self, attributes: Mapping[str, Any] | None) -> M:
        """Return the metric with these labels."""
        labels = dict(attributes or {})
        with self._creating:
            if self._metric is None:
                self._metric = self._create(self._name, sorted(labels), self._registry)
            metric = self._metric
        return metric.labels(**labels) if labels else metric


class _Counter(metrics.Counter):
    def __init__(self, figures: _Instrument[prometheus_client.Counter]) -> None:
        self._figures = figures

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:  # noqa: ARG002 - API's
        self._figures.of(attributes).inc(amount)


class _Gauge(Gauge):
    def __init__(self, figures: _Instrument[prometheus_client.Gauge]) -> None:
        self._figures = figures

    def set(self, amount: float, attributes: Any = None, context: Any = None) -> None:  # noqa: ARG002 - API's
        self._figures.of(attributes).set(amount)


class _Histogram(metrics.Histogram):
    def __init__(self, figures: _Instrument[prometheus_client.Histogram]) -> None:
        self._figures = figures

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None:  # noqa: ARG002 - API's
        self._figures.of(attributes).observe(amount)


class _Observed(Collector):
    """A gauge whose values are asked for at each collection."""

    def __init__(self, name: str, about: str, callbacks: Sequence[metrics.CallbackT]) -> None:
        self._name, self._about, self._callbacks = name, about, callbacks

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name the gauge, without asking for its values."""
        return [GaugeMetricFamily(self._name, self._about)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Ask for the values."""
        family = GaugeMetricFamily(self._name, self._about)
        for callback in self._callbacks:
            for seen in callback(CallbackOptions()):  # type: ignore[operator]  # Lockgate's are no generators
                labels = {label: str(text) for label, text in (seen.attributes or {}).items()}
                family.add_sample(self._name, labels, seen.value)
        return [family]


def _shown(name: str, unit: str) -> str:
    """Return a metric's name as Prometheus shows it, such as `lockgate_journal_write_seconds`."""
    return name.replace(".", "_") + _UNITS.get(unit, "")
