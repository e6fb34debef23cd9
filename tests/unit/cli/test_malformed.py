"""An unreadable record is reported to the operator in one line that names it, with exit code 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, document, lapsed_job
from tests.support.commit.destination import World
from tests.support.commit.malformed_records import LOG, RECORDS, Stage


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """Return a job that reads the named record next and finds only half of it."""
    stage = RECORDS[request.param](World(tmp_path, str(tmp_path / "lake")))
    data = stage.world.store.get(stage.key)
    stage.key = stage.tamper(data[: len(data) // 2])
    return stage


@pytest.mark.parametrize("stage", ["pending set", "COMMIT_STARTED", "outcome"], indirect=True)
def test_a_commit_exits_with_3_and_names_a_malformed_record(run: Run, stage: Stage) -> None:
    result = run("jobs", "commit", stage.world.url, "sales", "--take-over")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert stage.key in result.stderr
    assert stage.world.visible() == stage.visible


@pytest.mark.parametrize("stage", ["job.json", "COMMIT_SUCCESS"], indirect=True)
def test_showing_a_job_with_malformed_markers_exits_with_3_and_listing_continues(
    run: Run, stage: Stage
) -> None:
    shown = run("jobs", "show", stage.world.url, "sales", "--json")
    assert shown.exit_code == 3
    assert document(shown)["error"]["type"] == "MalformedRecordError"
    listed = run("jobs", "list", stage.world.url, "--json")
    assert listed.exit_code == 0
    details = {job["job_id"]: job["detail"] for job in document(listed)}
    assert stage.key in details["sales-g1"]
    assert details["old-g1"] == ""


@pytest.mark.parametrize("stage", ["job.json", "COMMIT_FAIL"], indirect=True)
def test_a_recovery_exits_with_3_at_a_malformed_marker_and_recovers_the_other_jobs(
    run: Run, stage: Stage, settings: Settings
) -> None:
    lapsed_job(stage.world.url, settings, "theirs")
    result = run("jobs", "recover", stage.world.url, "--all", "--json")
    assert result.exit_code == 3
    found = {job["job_id"]: job["action"] for job in document(result)}
    assert (found["sales-g1"], found["theirs-g1"]) == ("touch nothing", "abort")


@pytest.mark.parametrize("stage", LOG[1:], indirect=True)
def test_a_manifest_of_a_malformed_log_exits_with_3_and_names_the_record(run: Run, stage: Stage) -> None:
    result = run("manifest", stage.world.url)
    assert (result.exit_code, result.stdout) == (3, "")
    assert stage.key in result.stderr
