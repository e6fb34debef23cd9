"""Serve a journal's metrics to Prometheus. A limited number of leases is counted at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lockgate.storage_core.errors import JournalUnavailableError, StateLostError
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.metrics import gauge
from lockgate.storage_core.journal.read.snapshot_read import COUNTED, Reading, count_leases, stored_bytes

Figures: TypeAlias = Callable[[Reading], Iterable[GaugeMetricFamily]]
"""Figures of one family of entries, from one state of the journal."""


@contextmanager
def serve_metrics(
    journal: Journal, *, port: int, host: str = "127.0.0.1", families: Sequence[Figures] = ()
) -> Iterator[str]:
    """Serve this process's metrics, and what a journal knows, at `http://host:port/metrics`.

    Args:
        journal: Read at each scrape.
        port: 0 selects a free port.
        host: Address to listen on; there is no authentication.
        families: Figures of what the journal orders, such as jobs and blobs.

    Yields:
        The URL.
    """
    collector = _JournalCollector(journal, families)
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
    """Reads one state of a journal at each scrape."""

    def __init__(self, journal: Journal, families: Sequence[Figures]) -> None:
        self._journal, self._families = journal, families

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that the registration reads no journal."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges; only `up` if the journal cannot be read."""
        up = gauge("journal_up", "Whether the journal answers")
        sequence = gauge("journal_sequence", "Number of the newest entry: its rate is entries per second")
        kept = gauge("journal_entries_kept", "Entries that are not pruned")
        size = gauge("journal_bytes", "Size of the tables and indexes in the journal's database")
        safe_mode = gauge("journal_safe_mode", "Whether the journal is in safe mode")
        reasons = gauge("journal_safe_mode_reasons", "1 for each reason for safe mode", "reason")
        leases = gauge("journal_leases", f"Leases in this state, among the first {COUNTED}", "state")
        name = self._journal.name
        try:
            with self._journal.reading() as reading:
                status, counts, stored = reading.status(), count_leases(reading), stored_bytes(reading)
                others = [figure for family in self._families for figure in family(reading)]
        except (JournalUnavailableError, StateLostError):
            up.add_metric([name], 0)
            return [up]
        up.add_metric([name], 1)
        sequence.add_metric([name], status.stamp.sequence)
        kept.add_metric([name], status.stamp.sequence - status.pruned_sequence)
        size.add_metric([name], stored)
        safe_mode.add_metric([name], status.safe_since_s is not None)
        for one in status.safe_reasons:
            reasons.add_metric([name, one.reason], 1)
        for state, count in counts.items():
            leases.add_metric([name, str(state)], count)
        return [up, sequence, kept, size, safe_mode, reasons, leases, *others]
