"""Alerts and dashboard: names are exported, alerts have a section of the runbook, figures are true."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric

from lockgate.storage_core.blobs.registry.queries import blob_metrics
from lockgate.storage_core.commit.registry.needs import job_metrics
from lockgate.storage_core.http import application
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.metrics_endpoint import _JournalCollector
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.workers.metrics import counts
from tests.support.blobs.server import blob_world
from tests.support.commit.destination import World
from tests.support.web.jobs import client_of, job_in

DOCKER = Path(__file__).parents[2] / "docker"
RULES = DOCKER / "prometheus" / "rules.yml"
DASHBOARD = DOCKER / "grafana" / "lockgate.json"
RUNBOOK = DOCKER.parent / "docs" / "guides" / "runbook.md"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
SELECTOR = re.compile(r"\b(lockgate_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, str(tmp_path / "lake")).with_journal()


def alerts() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def exported(world: World) -> dict[str, set[str]]:
    """Return the labels of each figure that the processes export, by its name."""
    application._metrics("lockgate_blobs"), metrics._metrics(), counts._begun(), counts._seconds()
    collector = _JournalCollector(world.journal, [job_metrics, blob_metrics])
    queues = counts.QueueLengths(None)
    declared = {
        metric for metric in REGISTRY._collector_to_names if getattr(metric, "_labelnames", None) is not None
    }
    found: dict[str, set[str]] = {}
    for one in declared:
        for family in one.describe():
            for suffix in SUFFIXES.get(family.type, ()):
                found[family.name + suffix] = {*one._labelnames, "le"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "queue_lengths", lambda *_: {"commit": 1})
        for family in (*collector.collect(), *queues.collect()):
            found[family.name] = {label for sample in family.samples for label in sample.labels}
    found["lockgate_journal_safe_mode_reasons"] = {"journal", "reason"}
    return found


def test_the_rules_and_the_dashboard_name_only_what_is_exported(world: World) -> None:
    known = exported(world)
    unknown = []
    for expression in expressions():
        selectors = SELECTOR.findall(expression)
        assert selectors, expression
        labels = {label for name, _ in selectors for label in known.get(name, ())}
        unknown += [name for name, _ in selectors if name not in known]
        for name, given in selectors:
            unknown += [
                f"{name}{{{label}}}"
                for label in re.findall(r"(\w+)=", given)
                if label not in known.get(name, {label})
            ]
        grouped = {label.strip() for found in GROUPING.findall(expression) for label in found.split(",")}
        unknown += sorted(grouped - labels)
    assert unknown == []


def test_every_figure_is_documented(world: World) -> None:
    page = (RUNBOOK.parents[1] / "reference" / "metrics.md").read_text()
    names = {
        re.sub("_(bucket|sum|count)$", "", name) for name in exported(world) if name.startswith("lockgate_")
    }
    assert sorted(name for name in names if f"`{name}" not in page) == []


def test_every_alert_links_to_its_section_of_the_runbook() -> None:
    sections = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook_url"].endswith(f"/guides/runbook.html#{alert['alert'].lower()}")
    for section in re.split(r"^### ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]:
        assert [word for word in ("**Means**", "**Data at risk**", "**Ends**") if word not in section] == []


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("command", [("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")])
def test_promtool_accepts_the_rules_and_each_alert_fires(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def figures(families: Iterable[Metric]) -> dict[tuple[str, str], float]:
    """Return the values by name and second label."""
    return {
        (
            sample.name,
            next((value for label, value in sample.labels.items() if label != "journal"), ""),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_jobs_are_counted_as_the_pages_show_them(world: World) -> None:
    job_in(world, "live", "live")
    job_in(world, "quarantined", "bad")  # its clock goes on so far that the others lapse
    job_in(world, "lapsed", "lapsed")
    job_in(world, "suspended", "suspended")
    job_in(world, "decided", "decided")
    world.clock.sleep(1_000)
    with world.journal.reading() as reading:
        found = figures(job_metrics(reading))
    with client_of(world) as client:
        shown = client.get("/api/v1/jobs", params={"needs": "you"}).json()["items"]
    needing = {why: value for (name, why), value in found.items() if name == "lockgate_jobs_need_you"}
    assert needing == {
        "decided": 1,
        "undecided": 2,
        "quarantined": 1,
        "uploads left": 0,
        "undeleted files": 0,
    }
    assert len(shown) == sum(needing.values())
    assert (found["lockgate_jobs", "open"], found["lockgate_jobs", "committing"]) == (3, 1)
    assert found["lockgate_destinations_blocked", ""] == 1
    assert found["lockgate_jobs_oldest_decided_seconds", ""] == 1_000


def test_a_blob_that_no_sweep_deletes_grows_older(tmp_path: Path, journal_url: str) -> None:
    with blob_world(tmp_path, journal_url, store=instrument(LocalStore(tmp_path / "ha"))) as world:
        world.server.put(b"unneeded")
        world.clock.sleep(9_000)
        with world.journal.reading() as reading:
            before = figures(blob_metrics(reading))
        world.server.sweep(dry_run=False)
        with world.journal.reading() as reading:
            after = figures(blob_metrics(reading))
    unreferenced = ("lockgate_blobs_oldest_seconds", "unreferenced")
    assert (before[unreferenced], after[unreferenced]) == (9_000, 0)


def test_a_page_links_what_needs_a_person_to_the_runbook_if_its_address_is_set(world: World) -> None:
    job_in(world, "decided")
    world.clock.sleep(1_000_000)
    linked = World(
        world.root, world.url, world.clock, {**world.options, "docs_url": "https://docs.example.com/"}
    )
    pages = {}
    for name, of in (("none", world), ("set", linked)):
        with client_of(of) as client:
            pages[name] = (
                client.get("/jobs").text + client.get("/destination", params={"destination": world.url}).text
            )
    assert "runbook" not in pages["none"]
    assert re.findall(r'href="(https://[^"]*runbook[^"]*)"', pages["set"]) == [
        "https://docs.example.com/guides/runbook.html#lockgatejobneedsyou",
        "https://docs.example.com/guides/runbook.html#lockgatedestinationblocked",
    ]
