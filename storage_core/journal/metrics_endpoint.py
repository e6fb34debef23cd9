"""Serve a journal's metrics to Prometheus. A limited number of leases is counted at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Final

import msgspec
from opentelemetry.metrics import CallbackOptions, Observation
from prometheus_client import start_http_server

from lockgate.storage_core.errors import JournalUnavailableError, StateLostError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.entries.leases import LeaseState
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import COUNTED, Status, count_leases
from lockgate.storage_core.prometheus import served_metrics


@contextmanager
def serve_metrics(journal: Journal, *, port: int, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve this process's metrics, and the leases of a journal, at `http://host:port/metrics`.

    Args:
        journal: Queried at each scrape.
        port: 0 selects a free port.
        host: Address to listen on; there is no authentication.

    Yields:
        The URL.
    """
    with watched_leases(journal):
        server, thread = start_http_server(port, host, served_metrics())
        try:
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@contextmanager
def watched_leases(journal: Journal) -> Iterator[None]:
    """Export a journal's newest entry and its leases by state, read at each collection of metrics."""
    _create_gauges()
    watched = _Watched(journal)
    _WATCHED.append(watched)
    try:
        yield
    finally:
        _WATCHED.remove(watched)


class _Answer(msgspec.Struct, frozen=True):
    """Status and leases of a journal at one collection."""

    status: Status
    leases: dict[LeaseState, int]


class _Watched:
    """A journal that is read once for each collection, whichever gauge comes first."""

    def __init__(self, journal: Journal) -> None:
        self.name = journal.name
        self._journal = journal
        self._answer: _Answer | None = None
        self._given_to: set[str] = set()

    def answer(self, gauge: str) -> _Answer | None:
        """Return the journal's status and leases, None if it cannot be reached.

        A second call for the same gauge begins a new collection, so it reads the journal again.
        """
        if gauge in self._given_to or not self._given_to:
            self._given_to.clear()
            try:
                with self._journal.reading() as reading:
                    self._answer = _Answer(reading.status(), count_leases(reading))
            except (JournalUnavailableError, StateLostError):
                self._answer = None
        self._given_to.add(gauge)
        return self._answer


_WATCHED: Final[list[_Watched]] = []


@cache
def _create_gauges() -> None:
    meter = metrics.meter()
    for name, about, values in (
        ("up", "Whether the journal answers", _up),
        ("sequence", "Number of the newest entry: its rate is entries per second", _sequence),
        ("safe_mode", "Whether the journal is in safe mode", _safe_mode),
        ("safe_mode_reasons", "1 for each reason for safe mode", _safe_mode_reasons),
        ("leases", f"Leases in this state, among the first {COUNTED}", _leases),
    ):
        meter.create_observable_gauge(
            f"{metrics.SCOPE}.{name}", callbacks=[partial(_observe, name, values)], description=about
        )


def _observe(
    gauge: str, values: Callable[[_Answer | None], Mapping[str, float]], _: CallbackOptions
) -> Iterator[Observation]:
    for watched in tuple(_WATCHED):
        for state, value in values(watched.answer(gauge)).items():
            labels = {"journal": watched.name}
            kind = "state" if gauge == "leases" else "reason"
            yield Observation(value, {**labels, kind: state} if state else labels)


def _up(answer: _Answer | None) -> Mapping[str, float]:
    return {"": float(answer is not None)}


def _sequence(answer: _Answer | None) -> Mapping[str, float]:
    return {} if answer is None else {"": answer.status.stamp.sequence}


def _safe_mode(answer: _Answer | None) -> Mapping[str, float]:
    return {} if answer is None else {"": float(answer.status.safe_since_s is not None)}


def _safe_mode_reasons(answer: _Answer | None) -> Mapping[str, float]:
    return {} if answer is None else {one.reason: 1.0 for one in answer.status.safe_reasons}


def _leases(answer: _Answer | None) -> Mapping[str, float]:
    return {} if answer is None else {str(state): count for state, count in answer.leases.items()}
