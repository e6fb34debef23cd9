"""Lists of jobs: what each needs, filters, order, pages by key, runs and charts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.api import jobs as job_index
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.registry.entries import RecordJob, RecordTask
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal.entries.lease_entries import FreeLease, TakeLease
from lockgate.storage_core.journal.process_journal import close_journals
from lockgate.storage_core.settings import load_settings
from tests.support.commit.destination import ManualClock

LAKE, BARN = "s3://lake/sales", "s3://barn/sales"
DAY_S = 86_400.0


def record(number: int, phase: str = "open", **changes: Any) -> RecordJob:
    name = changes.pop("name", f"job{number:03d}")
    fields: dict[str, Any] = {
        "destination": LAKE, "job_id": f"{name}-g1", "name": name, "short_id": "abcdefghij",
        "committer": "magic", "mode": "append", "phase": phase, "job_attempt": "run-1",
        "set_up_s": float(number),
    }  # fmt: skip
    return RecordJob(**{**fields, **changes})


class Site:
    """The application over a journal."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        settings = load_settings(home=root / "home", journal_url=f"sqlite:///{root}/journal.db")
        self.reads = Reads(settings, clock=self.clock)
        self.journal = self.reads.client.journal
        host = Host(may_read=lambda: None, may_act={}, offers=lambda _: frozenset(), user=lambda _: "me")
        self.client = TestClient(web_app(host, self.reads))

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ids(self, path: str = "jobs", **query: Any) -> list[str]:
        return [item["job_id"] for item in self.get(path, **query)["items"]]

    def pages(self, path: str = "jobs", **query: Any) -> list[list[str]]:
        """Return the ids of all pages."""
        pages: list[list[str]] = []
        after: str | None = None
        for _ in count():
            page = self.get(path, **query, **({"after": after} if after else {}))
            pages.append([item["job_id"] for item in page["items"]])
            after = page["next_after"]
            if after is None:
                return pages
        raise AssertionError

    def lease(self, number: int, *, free: bool = False) -> None:
        resource = job_resource(LAKE, f"job{number:03d}-g1")
        taken = self.journal.apply(
            TakeLease(resource=resource, holder=f"h{number}", purpose="write", soft_s=30, hard_s=120)
        )
        if free:
            self.journal.apply(FreeLease(resource=resource, stamp=taken.stamp))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.reads.close()
    close_journals()


def test_a_page_continues_after_the_last_job_in_either_order_and_by_name(site: Site) -> None:
    for number in range(7):
        site.journal.apply(record(number, "open" if number % 2 else "committed", set_up_s=float(number // 2)))
    newest = [f"job{number:03d}-g1" for number in reversed(range(7))]
    assert site.pages(limit=3) == [newest[:3], newest[3:6], newest[6:]]
    assert list(chain(*site.pages(limit=2, sort="oldest"))) == newest[::-1]
    assert list(chain(*site.pages(limit=2, sort="name"))) == newest[::-1]
    assert site.pages(limit=7) == [newest]


def test_jobs_are_filtered_by_phase_destination_and_the_beginning_of_the_name(site: Site) -> None:
    site.journal.apply(record(1, "committed"))
    site.journal.apply(record(2, "failed", destination=BARN))
    site.journal.apply(record(3, "open", name="other", destination=BARN))
    site.journal.apply(record(4, "open", name="Other%"))
    assert site.ids(phase="failed") == ["job002-g1"]
    assert site.ids(destination=BARN + "/") == ["other-g1", "job002-g1"]
    assert site.ids(destination=BARN, phase="open") == ["other-g1"]
    assert site.ids(search="job") == ["job001-g1", "job002-g1"]
    assert site.ids(search="job", phase="failed", destination=BARN) == ["job002-g1"]
    assert site.ids(search="o") == ["other-g1"]
    assert site.ids(search="Other%") == ["Other%-g1"]
    assert site.ids(search="ob") == []


def test_each_job_says_what_it_needs_and_why(site: Site) -> None:
    for number, phase in enumerate(["open", "open", "committing", "committing", "committed", "failed"], 1):
        site.journal.apply(record(number, phase))
    site.journal.apply(record(7, "failed", attention="quarantined"))
    site.journal.apply(record(8, "failed", attention="uploads left"))
    site.lease(1)
    site.lease(2, free=True)
    site.lease(3)
    site.lease(4, free=True)
    rows = {row["job_id"][:6]: row for row in site.get("jobs")["items"]}
    assert {name: (row["needs"], row["needs_why"] != "") for name, row in sorted(rows.items())} == {
        "job001": ("wait", True),
        "job002": ("you", True),
        "job003": ("wait", True),
        "job004": ("you", True),
        "job005": ("nothing", False),
        "job006": ("nothing", False),
        "job007": ("you", True),
        "job008": ("you", True),
    }
    assert [name[:6] for name in site.ids(needs="you")] == ["job008", "job007", "job004", "job002"]
    assert [name[:6] for name in site.ids(needs="you", phase="failed")] == ["job008", "job007"]
    assert [name[:6] for name in site.ids(needs="wait")] == ["job003", "job001"]
    assert [name[:6] for name in site.ids(needs="nothing")] == ["job006", "job005"]
    counts = site.get("jobs/counts")
    assert (counts["needs_you"], counts["unended"], len(counts["first"])) == (4, 4, 4)
    site.clock.now += 1_000  # the leases of the live drivers lapse
    lapsed = ["job004", "job003", "job002", "job001"]
    assert [name[:6] for name in site.ids(needs="you")] == ["job008", "job007", *lapsed]


def test_a_rare_filter_reads_a_bounded_number_of_jobs_for_a_page(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_index, "SCANNED", 3)
    monkeypatch.setattr(job_index, "CHUNK", 1)
    for number in range(9):
        site.journal.apply(record(number, "committing" if number == 8 else "open"))
    pages = site.pages(sort="oldest", needs="you", limit=1)
    assert len(pages) > 1
    assert list(chain(*pages)) == ["job008-g1"]


def test_a_row_has_the_tasks_files_rows_and_times_of_the_registry(site: Site) -> None:
    site.journal.apply(record(1))
    for task, attempt in (("t1", "a1"), ("t1", "a2"), ("t2", "a1")):
        site.journal.apply(
            RecordTask(
                destination=LAKE,
                job_id="job001-g1",
                task_id=task,
                attempt_id=attempt,
                job_attempt="run-1",
                files=1,
                rows=None,
                size_bytes=1,
            )
        )
    (row,) = site.get("jobs")["items"]
    assert (row["tasks_committed"], row["tasks_expected"], row["commit_s"]) == (2, None, None)
    site.journal.apply(record(1, "committing", decided_s=100.0, tasks=2))
    site.journal.apply(record(1, "committed", ended_s=103.0, files=5, rows=50, size_bytes=500))
    (row,) = site.get("jobs")["items"]
    assert (row["tasks_committed"], row["tasks_expected"], row["commit_s"]) == (2, 2, 3.0)
    assert (row["files"], row["rows"], row["size_bytes"], row["ended_s"]) == (5, 50, 500, 103.0)


def test_the_jobs_of_a_run_a_task_and_a_mapped_task_are_found(site: Site) -> None:
    for number, (task, index) in enumerate([("a", -1), ("b", 0), ("b", 1)]):
        origin = {"dag_id": "dag", "run_id": "run+1", "task_id": task, "map_index": index}
        site.journal.apply(record(number, **origin))
    site.journal.apply(record(8, dag_id="dag", run_id="run+2", task_id="a", map_index=-1))
    site.journal.apply(record(9))
    run = {"dag_id": "dag", "run_id": "run+1"}
    assert site.ids("runs", **run) == ["job000-g1", "job001-g1", "job002-g1"]
    assert site.pages("runs", **run, limit=2) == [["job000-g1", "job001-g1"], ["job002-g1"]]
    assert site.ids("runs", **run, task_id="b") == ["job001-g1", "job002-g1"]
    assert site.ids("runs", **run, task_id="b", map_index=1) == ["job002-g1"]
    for unmapped in ("", "{MAP_INDEX}", -1):
        assert site.ids("runs", **run, task_id="a", map_index=unmapped) == ["job000-g1"]
    assert (
        site.get("runs", **run)["items"][2]["origin"].items()
        >= {**run, "task_id": "b", "map_index": 1}.items()
    )


def test_a_chart_has_a_value_for_each_day_with_commits_and_none_for_others(site: Site) -> None:
    today_s = site.clock.now // DAY_S * DAY_S
    for number, back, rows in ((1, 0, 10), (2, 2, 20), (3, 2, 30)):
        ended_s = today_s - back * DAY_S + 60
        ended = {"ended_s": ended_s, "decided_s": ended_s - 2 * number, "rows": rows, "size_bytes": 7}
        site.journal.apply(record(number, "committed", **ended))
    site.journal.apply(record(4, "failed", ended_s=today_s, decided_s=today_s))
    series = site.get("charts/rows", days=3)
    assert series["values"] == [50, None, 10]
    assert series["at_s"] == [today_s - 2 * DAY_S, today_s - DAY_S, today_s]
    assert site.get("charts/commit-time", days=3)["values"] == [5, None, 2]
    assert site.get("charts/bytes", days=3, destination=BARN)["values"] == [None, None, None]
    assert site.client.get("/api/v1/charts/live-files").status_code == 400, "it needs a destination"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("jobs", {"after": "nonsense"}),
        ("jobs", {"search": "a\0"}),
        ("jobs", {"destination": "s3://"}),
        ("runs", {"dag_id": "a\0", "run_id": "b"}),
    ],
)
def test_a_parameter_that_no_job_has_is_refused(site: Site, path: str, query: dict[str, str]) -> None:
    answer = site.client.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_cursor_of_another_order_is_refused(site: Site) -> None:
    for number in range(3):
        site.journal.apply(record(number))
    after = site.get("jobs", limit=1)["next_after"]
    assert site.client.get("/api/v1/jobs", params={"after": after, "sort": "name"}).status_code == 400


def test_without_a_journal_the_lists_say_so(tmp_path: Path) -> None:
    host = Host(may_read=lambda: None, may_act={}, offers=lambda _: frozenset(), user=lambda _: "me")
    client = TestClient(web_app(host, Reads(load_settings(home=tmp_path, journal_url="none"))))
    for path in ("jobs", "runs?dag_id=a&run_id=b"):
        page = client.get(f"/api/v1/{path}").json()
        assert page["items"] == []
        assert "no journal" in page["unknown"][0]
    assert client.get("/api/v1/jobs/counts").json()["unended"] == 0
    assert set(client.get("/api/v1/charts/rows").json()["values"]) == {None}


def test_a_retried_phase_keeps_what_is_known_of_a_job(site: Site) -> None:
    origin = {"dag_id": "dag", "run_id": "run", "task_id": "a", "map_index": -1}
    site.journal.apply(record(1, decided_s=3.0, tasks=2, **origin))
    site.journal.apply(record(1, "committed"))
    (row,) = site.get("jobs")["items"]
    assert row["origin"].items() >= origin.items()
    assert row["tasks_expected"] == 2
