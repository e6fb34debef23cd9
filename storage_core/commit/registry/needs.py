"""Which jobs need a person: for the pages in words, for Prometheus counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

from prometheus_client.core import GaugeMetricFamily

from lockgate.storage_core.commit.registry.queries import UNENDED, unended
from lockgate.storage_core.commit.registry.rows import RESTS, UNDELETED_FILES, UPLOADS_LEFT, Job, Phase
from lockgate.storage_core.journal.entries.lease_entries import LeaseState, state_of
from lockgate.storage_core.journal.metrics import gauge
from lockgate.storage_core.journal.read.snapshot_read import COUNTED, Reading

Needs = Literal["nothing", "wait", "you"]
"""What a job needs: nothing, because it has ended; to wait, because it is at work; or a person."""

ENDED: Final[frozenset[Phase]] = frozenset({"committed", "failed"})

_ATTENTION: Final = {
    "quarantined": "It was set aside; abort it to delete what it wrote.",
    UNDELETED_FILES: "The store refuses to delete files that it replaced; grant the right, then recover it.",
    UPLOADS_LEFT: "Some of its uploads could not be aborted; recover it to try again.",
}
_OPEN: Final[dict[LeaseState | None, tuple[Needs, str]]] = {
    LeaseState.HELD: ("wait", "Its driver holds its lease."),
    LeaseState.SOFT: ("wait", "Its driver has not renewed its lease in time."),
    LeaseState.SUSPENDED: ("wait", "Its tasks are writing, or its next step has not begun."),
    LeaseState.RECOVERING: ("wait", "Recovery looks at it."),
    LeaseState.HARD: ("you", "Its driver is gone before the decision."),
    LeaseState.FREE: ("you", "Its driver has left before the decision."),
    None: ("wait", "Its lease cannot be read here."),
}


def needs_of(phase: str, lease: LeaseState | None, attention: str | None) -> tuple[Needs, str]:
    """Return what a job needs, and why in one sentence; empty for `nothing`.

    Args:
        phase: Its phase in the registry.
        lease: State of its driver's lease; None if it cannot be read.
        attention: What the registry says that a person must do after the end.
    """
    if attention in _ATTENTION:
        return "you", _ATTENTION[attention]
    if phase in ENDED:
        return "nothing", ""
    if phase == "open" or lease is LeaseState.SOFT:
        return _OPEN[lease]
    if lease in {LeaseState.HELD, LeaseState.SUSPENDED}:
        return "wait", "Its driver holds its lease and brings it to its end."
    if lease is LeaseState.RECOVERING:
        return "wait", "Recovery brings it to its end."
    return "you", "It was decided but has not ended, and its driver is gone."


def job_metrics(reading: Reading) -> Iterator[GaugeMetricFamily]:
    """Yield the figures of the jobs that have not ended, and of those that need a person.

    Of each kind the first `COUNTED` are counted, so that a scrape costs the same at any size.
    """
    now_s = reading.now_s()
    phases, needing = Counter(dict.fromkeys(sorted(UNENDED), 0)), Counter[str]()
    blocked, oldest_s = set[str](), now_s
    for job, lease in islice(unended(reading), COUNTED):
        phases[job.phase] += 1
        if job.phase != "open":
            oldest_s = min(oldest_s, job.decided_s or job.changed_s)
        if needs_of(job.phase, None if lease is None else state_of(lease, now_s), job.attention)[0] == "you":
            needing["undecided" if job.phase == "open" else "decided"] += 1
            if job.phase == "committing":
                blocked.add(job.destination)
    for why in ("quarantined", *RESTS):
        needing[why] = len(reading.where(Job, {"attention": why}, limit=COUNTED))
    jobs = gauge("jobs", "Jobs that have not ended, by phase", "phase")
    for phase, number in phases.items():
        jobs.add_metric([reading.journal, phase], number)
    need_you = gauge("jobs_need_you", "Jobs that need a person, by reason", "why")
    for why in ("decided", "undecided", "quarantined", *RESTS):
        need_you.add_metric([reading.journal, why], needing[why])
    oldest = gauge("jobs_oldest_decided_seconds", "Age of the oldest decision that is not carried out")
    oldest.add_metric([reading.journal], now_s - oldest_s)
    blocks = gauge(
        "destinations_blocked", "Destinations whose turn is held by a decided job without a driver"
    )
    blocks.add_metric([reading.journal], len(blocked))
    yield from (jobs, need_you, oldest, blocks)
