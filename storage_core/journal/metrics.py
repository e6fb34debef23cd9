"""Record metrics and spans of a journal through OpenTelemetry's API.

Without a `MeterProvider` this has no effect; `storage_core.prometheus` has one for Lockgate's `/metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from opentelemetry import metrics, trace

SCOPE: Final = "lockgate.journal"
"""Name of the instrumentation scope; Prometheus replaces the `.` by `_`."""

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MUTATIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@cache
def meter() -> metrics.Meter:
    """Return OpenTelemetry's meter. Not called at import, because it reads the environment."""
    return metrics.get_meter(SCOPE)


class _Instruments:
    def __init__(self) -> None:
        new = meter()
        self.entries = new.create_counter(f"{SCOPE}.entries", description="Entries written")
        self.group_size = new.create_histogram(
            f"{SCOPE}.group_size",
            unit="{mutation}",
            description="Mutations of one transaction",
            explicit_bucket_boundaries_advisory=_MUTATIONS,
        )
        self.write = new.create_histogram(
            f"{SCOPE}.write",
            unit="s",
            description="One write transaction, until it is durable",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.renewals = new.create_counter(f"{SCOPE}.lease_renewals", description="Leases renewed")
        self.renew = new.create_histogram(
            f"{SCOPE}.renew",
            unit="s",
            description="One renewal of all that a holder holds",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.waits = new.create_counter(
            f"{SCOPE}.observer_waits", description="Reads that waited for an observer that was behind"
        )
        self.fallbacks = new.create_counter(
            f"{SCOPE}.observer_fallbacks",
            description="Reads that went to the primary for want of an observer",
        )
        self.lag = new.create_gauge(
            f"{SCOPE}.observer_lag",
            unit="s",
            description="How far an observer is behind, when last looked at",
        )


@cache
def _instruments() -> _Instruments:
    return _Instruments()


def record_write(journal: str, *, entries: int, mutations: int, seconds: float) -> None:
    """Record one durable write transaction.

    Args:
        journal: Name of the journal.
        entries: Number of entries added.
        mutations: Number of mutations, including refused and repeated ones.
        seconds: Time from the first statement until the commit.
    """
    instruments, of = _instruments(), {"journal": journal}
    instruments.entries.add(entries, of)
    instruments.group_size.record(mutations, of)
    instruments.write.record(seconds, of)


def record_renewal(journal: str, *, leases: int, seconds: float) -> None:
    """Record one renewal of all leases of a holder."""
    of = {"journal": journal}
    _instruments().renewals.add(leases, of)
    _instruments().renew.record(seconds, of)


def record_observer_wait() -> None:
    """Record a read that waited for an observer to catch up."""
    _instruments().waits.add(1)


def record_observer_fallback() -> None:
    """Record a read at the primary because no observer was available or had caught up."""
    _instruments().fallbacks.add(1)


def record_observer_lag(observer: str, seconds: float) -> None:
    """Record an observer's lag.

    Args:
        observer: URL of the observer, without a password.
        seconds: 0 if it has caught up.
    """
    _instruments().lag.set(seconds, {"observer": observer})


@contextmanager
def span(name: str, journal: str) -> Iterator[trace.Span]:
    """Trace one call of the journal.

    Args:
        name: Name of the call, such as `write`.
        journal: Name of the journal.
    """
    tracer = trace.get_tracer(SCOPE)
    with tracer.start_as_current_span(f"journal.{name}", attributes={"lockgate.journal": journal}) as began:
        yield began
