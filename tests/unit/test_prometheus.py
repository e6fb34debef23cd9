"""Metrics recorded through OpenTelemetry's API are exported to Prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import count

import pytest
from opentelemetry import metrics
from prometheus_client import generate_latest

from lockgate.storage_core.prometheus import served_metrics

_numbers = count()


@pytest.fixture
def name() -> str:
    """Return a metric name that no other test uses."""
    return f"lockgate.test.m{next(_numbers)}"


def test_names_and_units_are_those_of_prometheus(name: str) -> None:
    meter = metrics.get_meter("lockgate.test")
    meter.create_counter(f"{name}.calls").add(2, {"verb": "put", "outcome": "ok"})
    histogram = meter.create_histogram(f"{name}.call", unit="s", explicit_bucket_boundaries_advisory=[1.0])
    histogram.record(0.5)
    shown = generate_latest(served_metrics()).decode()
    stem = name.replace(".", "_")
    assert f'{stem}_calls_total{{outcome="ok",verb="put"}} 2.0' in shown
    assert f'{stem}_call_seconds_bucket{{le="1.0"}} 1.0' in shown
    assert f"{stem}_call_seconds_sum 0.5" in shown


def test_two_meters_count_in_one_metric_whichever_thread_is_first(name: str) -> None:
    begin = threading.Barrier(8)

    def work() -> None:
        counter = metrics.get_meter("lockgate.test").create_counter(name)
        begin.wait()
        counter.add(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served_metrics().get_sample_value(f"{name.replace('.', '_')}_total") == 8


def test_metrics_of_other_libraries_are_not_recorded() -> None:
    counter = metrics.get_meter("another.library").create_counter("another.count")
    counter.add(1, {"a": "b"})
    counter.add(1, {"c": "d"})
    assert "another" not in generate_latest(served_metrics()).decode()


def test_a_provider_set_by_the_program_receives_the_metrics() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CONFIGURED], check=True, capture_output=True, text=True, timeout=120
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"read": [3], "is_programs": True}


_CONFIGURED = """
import json
import prometheus_client
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from lockgate.storage_core.prometheus import served_metrics

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
registry = served_metrics()
metrics.get_meter("lockgate.test").create_counter("lockgate.test.count").add(3)
(resource,) = reader.get_metrics_data().resource_metrics
read = [p.value for scope in resource.scope_metrics for m in scope.metrics if m.name == "lockgate.test.count"
        for p in m.data.data_points]
print(json.dumps({"read": read, "is_programs": registry is prometheus_client.REGISTRY}))
"""
