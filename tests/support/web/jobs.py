"""A client of the application over one local destination, and jobs in every phase."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.recovery.quarantine import quarantine_job
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, write

FILES = {"day=1/a.csv": b"1", "day=1/b.csv": b"22"}
DIES_AT = {
    "decided": "complete.complete.before",
    "published": "success.create.before",
    "committed": "",
}


def allow() -> None:
    """Let everyone in."""


def client_of(world: World, reads: Reads | None = None, **options: Any) -> TestClient:
    """Return a client of the application, which may read this destination; options are those of the host."""
    app = _application() if not options else web_app(_host(**options))
    app.state.reads = reads or Reads(world.settings, destinations=[world.url], clock=world.clock)
    return TestClient(app)


@cache
def _application() -> FastAPI:
    """Return the application without reads: its routes take a tenth of a second, so tests share them."""
    return web_app(_host())


def _host(**options: Any) -> Host:
    offers = options.pop("offers", lambda _: frozenset())
    return Host(may_read=allow, may_act={}, offers=offers, user=lambda _: "tester", **options)


def get(world: World, path: str, **query: Any) -> Any:
    """Return the JSON of a route below the API."""
    with client_of(world) as client:
        answer = client.get(f"/api/v1{path}", params={"destination": world.url, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def job_in(world: World, phase: str, name: str = "sales", **options: object) -> Job:
    """Return a job in a phase; its lease is live unless the phase says otherwise."""
    job = world.open_job(name, **options)
    write(job, "t", FILES)
    match phase:
        case "live":
            job.close()  # nothing renews it, and the clock stands still
        case "suspended":
            job.suspend(3600)
        case "lapsed":
            job.suspend(0)
            world.clock.sleep(1)
        case "committed":
            job.commit()
        case "failed":
            job.abort("by a test")
        case "aborting":
            die_at("end.put.before", lambda: job.abort("by a test"))
        case "quarantined":
            job.close()
            world.store.put(job._folder.key("COMMIT_STARTED"), b"{")
            world.clock.sleep(1_000_000)
            quarantine_job(
                world.url,
                job.job_id,
                reason="it is damaged",
                dry_run=False,
                settings=world.settings,
                clock=world.clock,
            )
        case _:
            die_at(DIES_AT[phase], job.commit)
    FAILPOINTS.observer = None
    return job
