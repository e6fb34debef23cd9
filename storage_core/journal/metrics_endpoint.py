"""A journal's figures where Prometheus fetches them; its leases are counted only then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from prometheus_client import start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.entries.leases import LeaseState, state_of
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.journal import Journal

_ABOUT: Final = "Leases that stand so"


@contextmanager
def serve_metrics(journal: Journal, *, port: int, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve this process's figures, and the leases of a journal, at `http://host:port/metrics`.

    Args:
        journal: Asked for its leases whenever somebody fetches the figures.
        port: 0 takes one that is free.
        host: Whose address to listen on; the figures are shown to whoever reaches it.

    Yields:
        The URL.
    """
    with watched_leases(journal):
        server, thread = start_http_server(port, host, metrics.registry())
        try:
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@contextmanager
def watched_leases(journal: Journal) -> Iterator[None]:
    """Count the leases of a journal, by state, whenever Prometheus or OpenTelemetry collects."""
    collector, registry = _Standing(journal), metrics.registry()
    registry.register(collector)
    _telemetry()
    _WATCHED.append(journal)
    try:
        yield
    finally:
        _WATCHED.remove(journal)
        registry.unregister(collector)


def count_leases(journal: Journal) -> dict[LeaseState, int]:
    """Return how many leases stand how now, on the primary.

    Raises:
        JournalUnavailableError: It cannot be reached.
    """
    counts = dict.fromkeys(LeaseState, 0)
    with journal.reading() as reading:
        leases, now_s = reading.where(Lease, {}), reading.now_s()
    for lease in leases:
        counts[state_of(lease, now_s)] += 1
    return counts


class _Standing(Collector):
    """Asks a journal when it is collected; one that does not answer is `up` 0, and hides no other figure."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name what it collects, without asking for it."""
        return self._families()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Ask the journal."""
        up, sequence, safe, leases = families = self._families()
        name = self._journal.name
        try:
            status, counts = self._journal.status(), count_leases(self._journal)
        except JournalUnavailableError:
            up.add_metric([name], 0.0)
            return families
        up.add_metric([name], 1.0)
        sequence.add_metric([name], status.stamp.sequence)
        safe.add_metric([name], float(status.safe_since_s is not None))
        for state, count in counts.items():
            leases.add_metric([name, state], count)
        return families

    def _families(self) -> tuple[GaugeMetricFamily, ...]:
        sequence = "Number of the newest entry: how fast it grows is entries a second, whoever writes them"
        return (
            GaugeMetricFamily("lockgate_journal_up", "Whether the journal answers", labels=["journal"]),
            GaugeMetricFamily("lockgate_journal_sequence", sequence, labels=["journal"]),
            GaugeMetricFamily("lockgate_journal_safe_mode", "Whether nothing is reaped", labels=["journal"]),
            GaugeMetricFamily("lockgate_journal_leases", _ABOUT, labels=["journal", "state"]),
        )


_WATCHED: Final[list[Journal]] = []


@cache
def _telemetry() -> None:
    metrics.meter().create_observable_gauge(
        f"{metrics.SCOPE}.leases", callbacks=[_observed], description=_ABOUT
    )


def _observed(_: CallbackOptions) -> Iterator[Observation]:
    for journal in tuple(_WATCHED):
        try:
            counts = count_leases(journal)
        except JournalUnavailableError:
            continue
        for state, count in counts.items():
            yield Observation(count, {"journal": journal.name, "state": str(state)})
