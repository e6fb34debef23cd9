"""The benchmark of the pages: it asks every route, and its pages have jobs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from starlette.routing import Match

from benchmarks import pages
from benchmarks.pages import Registry, asks, measure, timed
from benchmarks.pages_files import make_job
from benchmarks.pages_registry import FEW
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from tests.support.journal.checkpoints import JournalWorld
from tests.unit.plugins.web.served import host

NOT_ASKED = {
    "/",  # leads to /jobs
    "/static/{name}",
    "/api/v1/blobs/jobs/{blob_job}",  # the registry of jobs has no blobs
}
MANY = 400


@pytest.fixture
def registry(journals: JournalWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(pages, "make_in_process", make_job)
    (tmp_path / "many").mkdir()
    made = Registry(MANY, 30, tmp_path / "many", journals.url)
    made.make()
    return made


def test_every_route_is_asked_and_each_page_of_jobs_has_some(registry: Registry) -> None:
    asked = set()
    app = web_app(host(), Reads(registry.settings))
    routes = [route for route in app.routes if "GET" in (getattr(route, "methods", None) or ())]
    with registry.client() as client:
        for ask in asks(registry):
            timed(client, ask)
            scope = {"type": "http", "method": "GET", "path": ask.path, "headers": []}
            asked |= {
                route.path  # type: ignore[attr-defined]
                for route in routes
                if route.matches(scope)[0] is Match.FULL
            }
            if ask.path == "/api/v1/jobs" and ask.where and "destination" not in ask.query:
                found = client.get(ask.path, params=dict(ask.query)).json()
                assert found["items"], ask
                assert (found["next_after"] is None) == (ask.where == "last") or ask.query, ask
    known = {route.path for route in routes}  # type: ignore[attr-defined]
    assert known - asked - NOT_ASKED == {path for path in known if "openapi" in path or "docs" in path}


def test_a_row_of_the_table_compares_one_request_with_few_and_many_jobs(
    registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "few").mkdir()
    few = Registry(FEW, 10, tmp_path / "few", f"sqlite:///{tmp_path}/few.db")
    few.make()
    rows = list(islice(measure(few, registry, rounds=2), 3))
    assert [row[:2] for row in rows] == [[ask.name, ask.where] for ask in asks(registry)[:3]]
    assert all(float(row[6]) > 0 for row in rows)
