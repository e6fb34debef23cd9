"""Serve a journal's metrics to Prometheus. A limited number of leases is counted at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lockgate.storage_core.errors import JournalUnavailableError, StateLostError
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.metrics import PREFIX
from lockgate.storage_core.journal.read.snapshot_read import COUNTED, count_leases


@contextmanager
def serve_metrics(journal: Journal, *, port: int, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve this process's metrics, and the leases of a journal, at `http://host:port/metrics`.

    Args:
        journal: Read at each scrape.
        port: 0 selects a free port.
        host: Address to listen on; there is no authentication.

    Yields:
        The URL.
    """
    collector = _JournalCollector(journal)
    REGISTRY.register(collector)
    try:
        server, thread = start_http_server(port, host)
        try:
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
    finally:
        REGISTRY.unregister(collector)


class _JournalCollector(Collector):
    """Reads a journal's status and leases at each scrape."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that the registration reads no journal."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges; only `up` if the journal cannot be read."""
        up = _gauge("up", "Whether the journal answers")
        sequence = _gauge("sequence", "Number of the newest entry: its rate is entries per second")
        safe_mode = _gauge("safe_mode", "Whether the journal is in safe mode")
        reasons = _gauge("safe_mode_reasons", "1 for each reason for safe mode", "reason")
        leases = _gauge("leases", f"Leases in this state, among the first {COUNTED}", "state")
        name = self._journal.name
        try:
            with self._journal.reading() as reading:
                status, counts = reading.status(), count_leases(reading)
        except (JournalUnavailableError, StateLostError):
            up.add_metric([name], 0)
            return [up]
        up.add_metric([name], 1)
        sequence.add_metric([name], status.stamp.sequence)
        safe_mode.add_metric([name], status.safe_since_s is not None)
        for one in status.safe_reasons:
            reasons.add_metric([name, one.reason], 1)
        for state, count in counts.items():
            leases.add_metric([name, str(state)], count)
        return [up, sequence, safe_mode, reasons, leases]


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", about, labels=["journal", *labels])
