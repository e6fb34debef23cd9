"""A journal's metrics, as read by Prometheus and OpenTelemetry."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from lockgate.storage_core.journal import Journal, Leases, Mutation, Stamp, metrics, open_journal
from lockgate.storage_core.journal.entries.leases import TakeLease
from lockgate.storage_core.journal.metrics_endpoint import serve_metrics
from lockgate.storage_core.journal.write.safe_reasons import SafeReason, enter_safe_mode
from lockgate.storage_core.prometheus import served_metrics
from tests.support.cli import Run
from tests.support.commit.destination import ManualClock


def take(resource: str) -> Mutation:
    return Mutation(op=TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120))


def figure(name: str, **labels: str) -> float:
    """Return the current value of a metric of this process; 0 if it has not been recorded yet."""
    return served_metrics().get_sample_value(f"lockgate_journal_{name}", labels) or 0.0


def fetched(url: str) -> dict[str, float]:
    with urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def run_script(script: str, *arguments: str) -> dict[str, object]:
    """Run a script in a new process, for per-process settings; returns the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True, timeout=120
    )
    printed: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_a_write_records_its_entries_mutations_and_duration(journal_url: str) -> None:
    with open_journal(journal_url, "counted") as journal:
        names = ("entries_total", "group_size_sum", "write_seconds_count")
        before = [figure(name, journal="counted") for name in names]
        journal.write([take("a"), take("a"), take("b")])
        after = [figure(name, journal="counted") for name in names]
    assert [a - b for a, b in zip(after, before, strict=True)] == [2, 3, 1]


def test_a_renewal_records_how_many_leases_it_renewed(journal_url: str) -> None:
    with open_journal(journal_url, "renewed") as journal:
        held = {"a": Stamp(1, 1), "b": Stamp(1, 2), "lost": Stamp(1, 9)}
        journal.write([take("a"), take("b")])
        lost = Leases(journal).renew("h", held)
    assert list(lost) == ["lost"]
    assert figure("lease_renewals_total", journal="renewed") >= 2
    assert figure("renew_seconds_count", journal="renewed") >= 1


def test_the_endpoint_shows_leases_by_state_and_the_counters(journal_url: str) -> None:
    clock = ManualClock()
    with (
        open_journal(journal_url, "served", clock=clock) as journal,
        serve_metrics(journal, port=0) as url,
    ):
        journal.write([take("a"), take("b")])
        clock.now += 60
        journal.write([take("c")])
        shown = fetched(url)
        of = 'lockgate_journal_leases{journal="served",state="%s"}'
        assert [shown[of % state] for state in ("held", "soft", "hard", "free")] == [1, 2, 0, 0]
        assert shown['lockgate_journal_up{journal="served"}'] == 1
        assert shown['lockgate_journal_entries_total{journal="served"}'] >= 3
        Leases(journal).free("c", journal.seen)
        assert fetched(url)[of % "free"] == 1


def test_a_journal_that_does_not_answer_is_shown_as_down_and_hides_no_other_metric(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    with (
        open_journal(f"sqlite:///{folder}/journal.db", "lost") as journal,
        serve_metrics(journal, port=0) as url,
    ):
        journal.write([take("a")])
        journal.close()
        folder.rename(tmp_path / "elsewhere")
        shown = fetched(url)
    assert shown['lockgate_journal_up{journal="lost"}'] == 0
    assert not any(name.startswith("lockgate_journal_leases{") for name in shown)
    assert shown['lockgate_journal_entries_total{journal="lost"}'] >= 1


def test_the_endpoint_closes_with_its_block_and_can_be_served_again(journal: Journal) -> None:
    for _ in range(2):
        with serve_metrics(journal, port=0) as url:
            assert fetched(url)['lockgate_journal_up{journal="main"}'] == 1
    with pytest.raises(OSError, match="refused"):
        urlopen(url)


def test_observers_record_their_lag_waits_and_fallbacks() -> None:
    before = figure("observer_waits_total"), figure("observer_fallbacks_total")
    metrics.record_observer_wait()
    metrics.record_observer_fallback()
    metrics.record_observer_lag("postgresql://standby/db", 0.25)
    assert (figure("observer_waits_total"), figure("observer_fallbacks_total")) == (
        before[0] + 1,
        before[1] + 1,
    )
    assert figure("observer_lag_seconds", observer="postgresql://standby/db") == 0.25


def test_a_fork_has_its_own_counters(tmp_path: Path) -> None:
    figures = run_script(_FORKED, f"sqlite:///{tmp_path}/journal.db")
    assert figures == {"parent": 1.0, "child": 2.0}


def test_opentelemetry_exports_the_same_metrics_and_one_span_per_write(tmp_path: Path) -> None:
    figures = run_script(_TRACED, f"sqlite:///{tmp_path}/journal.db")
    assert figures["lockgate.journal.entries"] == [2]
    assert figures["lockgate.journal.group_size"] == [3]
    assert figures["lockgate.journal.observer_lag"] == [0.5]
    assert figures["lockgate.journal.observer_waits"] == [1]
    assert figures["lockgate.journal.leases"] == {"held": 2}
    assert figures["spans"] == ["journal.write"]


_FORKED = """
import json, os, sys
from lockgate.storage_core.journal import Mutation, open_journal
from lockgate.storage_core.journal.entries.leases import TakeLease
from lockgate.storage_core.prometheus import served_metrics

def take(resource):
    return Mutation(op=TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120))

def entries():
    return served_metrics().get_sample_value("lockgate_journal_entries_total", {"journal": "main"})

served_metrics()
with open_journal(sys.argv[1]) as journal:
    journal.write([take("a")])
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    with open_journal(sys.argv[1]) as journal:
        journal.write([take("b"), take("c")])
    os.write(writes, str(entries()).encode())
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps({"parent": entries(), "child": float(os.read(reads, 100))}))
"""

_TRACED = """
import json, sys
from opentelemetry import metrics as api, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from lockgate.storage_core.journal import Mutation, metrics, open_journal
from lockgate.storage_core.journal.metrics_endpoint import watched_leases
from lockgate.storage_core.journal.entries.leases import TakeLease

def take(resource):
    return Mutation(op=TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120))

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
tracing = TracerProvider()
tracing.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracing)
api.set_meter_provider(MeterProvider(metric_readers=[reader]))
metrics.record_observer_wait()
metrics.record_observer_lag("standby", 0.5)
with open_journal(sys.argv[1]) as journal, watched_leases(journal):
    journal.write([take("a"), take("a"), take("b")])
    collected = reader.get_metrics_data()
figures = {"spans": [span.name for span in spans.get_finished_spans()]}
for resource in collected.resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            points = metric.data.data_points
            figures[metric.name] = [getattr(p, "value", getattr(p, "sum", None)) for p in points]
            if metric.name == "lockgate.journal.leases":
                figures[metric.name] = {p.attributes["state"]: p.value for p in points if p.value}
print(json.dumps(figures))
"""


def test_a_scrape_reports_the_newest_entry_of_any_writer_and_whether_safe_mode_is_on(
    journal: Journal, journal_url: str
) -> None:
    with open_journal(journal_url) as another, serve_metrics(journal, port=0) as url:
        another.write([take("a"), take("b")])
        before = fetched(url)
        with another.database.write() as connection:
            enter_safe_mode(connection, another.name, SafeReason.RESTORED, "from a backup", now_s=1.0)
        after = fetched(url)
    assert before['lockgate_journal_sequence{journal="main"}'] == 2
    assert [figures['lockgate_journal_safe_mode{journal="main"}'] for figures in (before, after)] == [0, 1]
    reason = 'lockgate_journal_safe_mode_reasons{journal="main",reason="restored"}'
    assert (reason in before, after[reason]) == (False, 1)


def test_an_error_about_an_unusable_address_names_it(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = run("journal", "metrics", "--port", port)
    assert refused.exit_code == 2
    assert f"--port {port}: Address already in use; name another" in refused.stderr
