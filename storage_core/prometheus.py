"""Export metrics that were recorded through OpenTelemetry's API to Prometheus.

The `MeterProvider` here uses prometheus_client, which can aggregate the processes of a Celery worker's pool.
OpenTelemetry's exporter for Prometheus cannot: see docs/internals/decisions.md, ADR 18.
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
    """Return the registry with this process's metrics. Metrics are recorded from the first call on.

    If the program has set another `MeterProvider`, Lockgate's metrics are recorded there and the default
    registry of prometheus_client is returned. OpenTelemetry then logs that it keeps the program's provider.
    """
    provider = _provider()
    return provider.registry if metrics.get_meter_provider() is provider else prometheus_client.REGISTRY


def use_multiprocess_files(folder: Path) -> None:
    """Store the metrics of this process and its forks in files, which `MultiProcessCollector` aggregates.

    prometheus_client reads the environment variable at import, so its value class is replaced here as well.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    if values.ValueClass is values.MutexValue:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    served_metrics()
    _provider().reset()


@cache
def _provider() -> _Provider:
    """Create this process's provider, and set it unless the program has set another."""
    provider = _Provider()
    os.register_at_fork(after_in_child=provider.reset)
    metrics.get_meter_provider()  # sets the provider that the environment names
    metrics.set_meter_provider(provider)
    return provider


class _Provider(metrics.MeterProvider):
    """Provides meters for Lockgate's scopes. Metrics of other libraries are not recorded."""

    def __init__(self) -> None:
        self._instruments: dict[str, _Instrument[Any]] = {}
        self._observed: dict[str, Collector] = {}
        self.reset()

    def reset(self) -> None:
        """Start from zero with new locks: a fork counts separately, and the parent may have held locks."""
        self._creating = threading.Lock()
        self.registry = CollectorRegistry()
        for instrument in tuple(self._instruments.values()):
            instrument.reset(self.registry)
        for collector in tuple(self._observed.values()):
            self.registry.register(collector)

    def get_meter(self, name: str, *_: object, **__: object) -> metrics.Meter:
        """Return a meter, which does nothing for scopes of other libraries."""
        return _Meter(name, self) if name.startswith(_SCOPES) else metrics.NoOpMeter(name)

    def instrument(self, name: str, unit: str, create: Create[M]) -> _Instrument[M]:
        """Return the instrument with this name, created at the first call."""
        with self._creating:
            full_name = _prometheus_name(name, unit)
            if full_name not in self._instruments:
                self._instruments[full_name] = _Instrument(full_name, create, self.registry)
            return self._instruments[full_name]

    def observe(self, name: str, collector: Collector) -> None:
        """Register a collector, which is called at each scrape."""
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
                lambda name, labels, registry: prometheus_client.Counter(
                    name, description, labels, registry=registry
                ),
            ),
        )

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Gauge:
        return _Gauge(
            self._provider.instrument(
                name,
                unit,
                lambda name, labels, registry: prometheus_client.Gauge(
                    name, description, labels, registry=registry, multiprocess_mode="mostrecent"
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
                lambda name, labels, registry: prometheus_client.Histogram(
                    name, description, labels, buckets=buckets, registry=registry
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
        full_name = _prometheus_name(name, unit)
        self._provider.observe(full_name, _Observed(full_name, description, callbacks or ()))
        return super().create_observable_gauge(name, callbacks, unit, description)


class _Instrument(Generic[M]):
    """A metric of prometheus_client, created with the labels of its first measurement."""

    def __init__(self, name: str, create: Create[M], registry: CollectorRegistry) -> None:
        self._name = name
        self._create: Create[M] = create
        self.reset(registry)

    def reset(self, registry: CollectorRegistry) -> None:
        """Start without measurements, in another registry."""
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
    """A gauge whose callbacks are called at each scrape."""

    def __init__(self, name: str, description: str, callbacks: Sequence[metrics.CallbackT]) -> None:
        self._name, self._description, self._callbacks = name, description, callbacks

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauge without values; does not call the callbacks."""
        return [GaugeMetricFamily(self._name, self._description)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauge with its current values."""
        family = GaugeMetricFamily(self._name, self._description)
        for callback in self._callbacks:
            for seen in callback(CallbackOptions()):  # type: ignore[operator]  # Lockgate's are no generators
                labels = {label: str(text) for label, text in (seen.attributes or {}).items()}
                family.add_sample(self._name, labels, seen.value)
        return [family]


def _prometheus_name(name: str, unit: str) -> str:
    """Return a metric's name in Prometheus, such as `lockgate_journal_write_seconds`."""
    return name.replace(".", "_") + _UNITS.get(unit, "")
