"""Metrics and spans of a journal, recorded through OpenTelemetry's API.

Without a `MeterProvider` they go nowhere; `storage_core.prometheus` has one for Lockgate's `/metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from opentelemetry import metrics, trace

SCOPE: Final = "lockgate.journal"
"""The name of the instrumentation scope; Prometheus writes it with `_`."""

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MUTATIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@cache
def meter() -> metrics.Meter:
    """Return OpenTelemetry's meter, asked for at the first use: it reads the environment then."""
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


def wrote(journal: str, *, entries: int, mutations: int, seconds: float) -> None:
    """Note one write transaction that is durable.

    Args:
        journal: Its name.
        entries: That it added.
        mutations: That it was asked for: those refused and those repeated are among them.
        seconds: From its first statement until it was durable.
    """
    instruments, of = _instruments(), {"journal": journal}
    instruments.entries.add(entries, of)
    instruments.group_size.record(mutations, of)
    instruments.write.record(seconds, of)


def renewed(journal: str, *, leases: int, seconds: float) -> None:
    """Note one renewal of all that a holder holds."""
    of = {"journal": journal}
    _instruments().renewals.add(leases, of)
    _instruments().renew.record(seconds, of)


def observer_waited() -> None:
    """Note a read that waited for an observer to catch up."""
    _instruments().waits.add(1)


def observer_fell_back() -> None:
    """Note a read that went to the primary, for no observer was there or had caught up."""
    _instruments().fallbacks.add(1)


def observer_lag(observer: str, seconds: float) -> None:
    """Note how far an observer is behind.

    Args:
        observer: Its URL as people may see it, without a password.
        seconds: 0 when it has caught up.
    """
    _instruments().lag.set(seconds, {"observer": observer})


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
