"""A journal's metrics, as read by Prometheus, and its spans."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from lockgate.storage_core.journal import Journal, Leases, Mutation, Stamp, metrics, open_journal
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.metrics_endpoint import serve_metrics
from lockgate.storage_core.journal.write.head import SafeReason, enter_safe_mode
from tests.support.cli import Run
from tests.support.commit.destination import ManualClock


def take(resource: str) -> Mutation:
    return Mutation(op=TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120))


def figure(name: str, **labels: str) -> float:
    """Return the current value of a metric of this process; 0 if it has not been recorded yet."""
    return REGISTRY.get_sample_value(f"lockgate_journal_{name}", labels) or 0.0


def fetched(url: str) -> dict[str, float]:
    with urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


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


def test_opentelemetry_gets_one_span_per_write(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    spans, tracing = InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(metrics.trace, "get_tracer", tracing.get_tracer)
    journal.write([take("a")])
    assert [span.name for span in spans.get_finished_spans()] == ["journal.write"]


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
