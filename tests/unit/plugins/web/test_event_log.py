"""The event log of a job in the API and on its page, also while the job runs."""

from __future__ import annotations

import os

import pytest
from bs4 import BeautifulSoup
from msgspec import structs

from lockgate import open_job
from lockgate.plugins.web.api import job_log as event_log
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.event_log import event_queue
from lockgate.storage_core.files.volumes.volume_map import VolumeMap
from lockgate.storage_core.settings import Settings
from tests.support.cli import committed_job, lapsed_job, write
from tests.unit.plugins.web.served import API, client


@pytest.fixture
def logged(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(event_queue, "FLUSH_EVERY_S", 0.01)
    return structs.replace(settings, job_log=True)


def test_a_running_job_shows_its_log_and_then_more_of_it(logged: Settings, destination: str) -> None:
    app = client(logged)
    job = open_job(destination, "sales", settings=logged)
    write(job)
    event_queue.close_event_logs()

    found = app.get(f"{API}/jobs/{job.job_id}/log").json()
    assert [line["event"] for line in found["lines"]] == ["opened", "task committed", "closed"]
    assert found["lines"][1]["task_id"] == "part-0"
    page = app.get(f"/job?job={job.job_id}").text
    assert "task part-0 committed" in page
    assert "phase: committed" not in page

    job.commit()
    event_queue.close_event_logs()
    newest = app.get(f"{API}/jobs/{job.job_id}/log?limit=2").json()
    assert [line["phase"] or line["event"] for line in newest["lines"]] == ["committed", "closed"]
    assert newest["is_cut"]
    assert "phase: committed" in app.get(f"/job?job={job.job_id}").text


def test_only_the_last_bytes_of_a_long_log_are_read(
    logged: Settings, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "TAIL_BYTES", 250)
    job = committed_job(destination, logged)
    event_queue.close_event_logs()

    found = client(logged).get(f"{API}/jobs/{job.job_id}/log").json()

    assert 0 < len(found["lines"]) < 4
    assert found["lines"][-1]["event"] == "closed"
    assert found["is_cut"]


def test_a_job_without_a_log_and_a_job_that_is_not_known(logged: Settings, destination: str) -> None:
    job = committed_job(destination, structs.replace(logged, job_log=False))
    app = client(logged)

    found = app.get(f"{API}/jobs/{job.job_id}/log").json()
    assert (found["lines"], found["files"], found["unknown"]) == ([], [], [])
    assert "The job has no event log." in app.get(f"/job?job={job.job_id}").text
    assert app.get(f"{API}/jobs/other-g1/log").status_code == 404
    assert app.get(f"{API}/jobs/{job.job_id}/log?limit=0").status_code == 422


def test_volumes_that_do_not_answer_are_named_and_the_page_is_shown(
    logged: Settings, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("the volume is away")

    job = committed_job(destination, logged)
    event_queue.close_event_logs()
    monkeypatch.setattr(VolumeMap, "__getitem__", fail)
    app = client(logged)

    found = app.get(f"{API}/jobs/{job.job_id}/log").json()
    assert found["lines"] == []
    assert "the volume is away" in found["unknown"][0]
    page = app.get(f"/job?job={job.job_id}")
    assert page.status_code == 200
    assert "the volume is away" in page.text


def test_the_recoveries_of_a_job_say_who_decided_what_and_what_came_of_it(
    logged: Settings, destination: str
) -> None:
    job = lapsed_job(destination, logged)
    recover_job(destination, job.job_id, settings=logged)
    event_queue.close_event_logs()
    app = client(logged)

    (found,) = app.get(f"{API}/jobs/{job.job_id}/log").json()["recoveries"]

    assert (found["action"], found["phase"]) == ("abort", "failed")
    assert "driver" in found["why"]
    assert found["process"].endswith(f":{os.getpid()}")
    assert found["began_s"] <= found["ended_s"]
    shown = BeautifulSoup(app.get(f"/job?job={job.job_id}").text, "html.parser").find(id="recovery")
    assert shown is not None
    assert "abort" in shown.text
    assert "failed" in shown.text


def test_without_a_log_the_decision_of_a_recovery_is_shown(settings: Settings, destination: str) -> None:
    without = structs.replace(settings, job_log=False)
    job = lapsed_job(destination, without)
    recover_job(destination, job.job_id, settings=without)
    app = client(without)

    found = app.get(f"{API}/jobs/{job.job_id}").json()
    shown = BeautifulSoup(app.get(f"/job?job={job.job_id}").text, "html.parser").find(id="recovery")

    assert found["decided_by"].endswith(f":{os.getpid()}")
    assert shown is not None
    assert f"{found['decided_by']} decided: aborted: recovery: " in shown.text
