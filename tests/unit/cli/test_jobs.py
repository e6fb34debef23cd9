"""Tests of `lockgate jobs` over a real local store: output for people, JSON for scripts, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate import open_job
from lockgate.storage_core.cli import job_commands
from lockgate.storage_core.commit import job_summary
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.settings import Settings
from tests.support.blobs.job_artefacts import bytes_of, uploaded
from tests.support.cli import Run, committed_job, document, lapsed_job, open_written_job, visible, write
from tests.support.commit.destination import World
from tests.support.commit.malformed_records import died_at


def test_jobs_list_shows_every_job_with_its_phase(run: Run, destination: str, settings: Settings) -> None:
    committed_job(destination, settings, "sales")
    lapsed_job(destination, settings, "returns")

    shown = run("jobs", "list", destination)
    listed = document(run("jobs", "list", destination, "--json"))

    assert shown.exit_code == 0
    assert "sales-g1" in shown.stdout
    assert "committed" in shown.stdout
    assert {job["job_id"]: (job["phase"], job["lease"]) for job in listed} == {
        "returns-g1": ("open", "lapsed"),
        "sales-g1": ("committed", "unknown"),
    }
    assert "left out" not in shown.stdout
    committed_job(destination, settings, "sales")
    assert "Older ended jobs may be left out" in run("jobs", "list", destination).stdout


def test_jobs_of_a_destination_are_listed_page_by_page(
    run: Run, destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        committed_job(destination, settings, name)
    monkeypatch.setattr(job_commands, "SHOWN", 2)
    read = list[str]()
    summarise = job_summary.summarise
    monkeypatch.setattr(
        job_summary, "summarise", lambda *args, **named: read.append(args[1]) or summarise(*args, **named)
    )

    first = run("jobs", "list", destination)
    second = run("jobs", "list", destination, "--after", "b-g1")
    only = run("jobs", "list", destination, "--after", f"{destination}#a-g1", "--limit", "1", "--json")
    none = run("jobs", "list", destination, "--after", "c-g1")
    wrong = run("jobs", "list", destination, "--after", "no id")

    assert ("a-g1" in first.stdout, "c-g1" in first.stdout) == (True, False)
    assert f"lockgate jobs list {destination} --after b-g1" in first.stdout
    assert ("b-g1" in second.stdout, "c-g1" in second.stdout) == (False, True)
    assert "There may be more" not in second.stdout
    assert [job["job_id"] for job in document(only)] == ["b-g1"]
    assert none.stdout.strip() == f"no more jobs at {destination}"
    assert (wrong.exit_code, "give a job id" in wrong.stderr) == (2, True)
    assert read == ["a-g1", "b-g1", "c-g1", "b-g1"]


def test_jobs_show_prints_the_records_of_the_store(run: Run, destination: str, settings: Settings) -> None:
    job = committed_job(destination, settings)

    shown = run("jobs", "show", destination, job.job_id)
    view = document(run("jobs", "show", destination, job.job_id, "--json"))

    assert shown.exit_code == 0
    assert "committed at " in shown.stdout
    assert "in turn 1, mode append" in shown.stdout
    assert (view["phase"], view["receipt"]["files"]) == ("committed", 1)
    assert [file["result"] for file in view["report"]["files"]] == ["published"]


@pytest.mark.parametrize("point", [None, "complete.complete.before"], ids=["open", "decided"])
def test_jobs_show_prints_a_job_whose_driver_died(
    run: Run, destination: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str | None
) -> None:
    for name, limit_s in {"RENEW": 0.1, "SOFT": 0.2, "HARD": 0.5}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", str(limit_s))
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.4")
    died_at(World(tmp_path, destination), point)

    shown = run("jobs", "show", destination, "sales")
    view = document(run("jobs", "show", destination, "sales", "--json"))

    assert shown.exit_code == 0
    assert "1 of 1 committed" in shown.stdout
    assert (view["decision"] is None) == (point is None)
    assert view["tasks"] == {"committed": 1, "expected": 1}


def test_jobs_show_prints_the_success_file_until_a_later_job_replaces_it(
    run: Run, destination: str, settings: Settings
) -> None:
    first = committed_job(destination, settings, "first")

    shown = run("jobs", "show", destination, "first").stdout
    success = document(run("jobs", "show", destination, "first", "--json"))["success"]

    assert "lists all files (1)" in shown
    assert f"{destination}/_lockgate/log/00000001.json and its shards" in shown
    assert success["listing_digest"] in shown
    assert success["filenames"] == [f"day=1/a-{first.short_id}.csv"]

    committed_job(destination, settings, "second")
    assert "_SUCCESS" not in run("jobs", "show", destination, "first").stdout
    assert document(run("jobs", "show", destination, "first", "--json"))["success"] is None


def test_a_job_name_refers_to_its_newest_generation(run: Run, destination: str, settings: Settings) -> None:
    committed_job(destination, settings)
    committed_job(destination, settings)
    committed_job(destination, settings, "sales-extra")

    assert document(run("jobs", "show", destination, "sales", "--json"))["record"]["job_id"] == "sales-g2"
    assert document(run("jobs", "show", destination, "sales-g1", "--json"))["record"]["job_id"] == "sales-g1"


@pytest.mark.parametrize("job", ["unheard-of", "sales-g7"])
def test_an_unknown_job_is_a_one_line_error_with_exit_code_4(
    run: Run, destination: str, settings: Settings, job: str
) -> None:
    committed_job(destination, settings)

    result = run("jobs", "show", destination, job)

    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.startswith("error: no job ")
    assert result.stderr.count("\n") == 1
    assert "jobs list" in result.stderr


def test_with_json_an_error_is_the_only_document(run: Run, destination: str) -> None:
    result = run("jobs", "show", destination, "unheard-of", "--json")

    assert document(result)["error"]["type"] == "ObjectNotFoundError"
    assert document(result)["error"]["exit_code"] == result.exit_code == 4
    assert result.stderr == ""


def test_jobs_commit_publishes_the_job_and_prints_the_same_when_repeated(
    run: Run, destination: str, settings: Settings
) -> None:
    job = lapsed_job(destination, settings)
    assert visible(destination) == []

    first = run("jobs", "commit", destination, "sales", "--json")
    second = run("jobs", "commit", destination, "sales", "--json")

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert document(first) == document(second)
    assert visible(destination) == [f"day=1/a-{job.short_id}.csv"]


def test_jobs_commit_refuses_a_job_with_a_live_driver_unless_asked_to_take_it_over(
    run: Run, destination: str, settings: Settings
) -> None:
    open_written_job(destination, settings)

    refused = run("jobs", "commit", destination, "sales")
    assert (refused.exit_code, visible(destination)) == (8, [])
    assert "--take-over" in refused.stderr

    assert run("jobs", "commit", destination, "sales", "--take-over").exit_code == 0
    assert len(visible(destination)) == 1


def test_jobs_abort_drops_what_was_written(run: Run, destination: str, settings: Settings) -> None:
    job = open_written_job(destination, settings)

    result = run("jobs", "abort", destination, "sales", "--reason", "wrong day")

    assert (result.exit_code, result.stdout) == (0, "sales-g1 is failed\n")
    assert job.phase() is JobPhase.FAILED
    assert document(run("uploads", "list", destination, "--json"))["uploads"] == []
    assert document(run("jobs", "show", destination, "sales", "--json"))["decision"]["reason"] == "wrong day"


def test_jobs_abort_refuses_a_job_that_is_committed(run: Run, destination: str, settings: Settings) -> None:
    job = committed_job(destination, settings)

    result = run("jobs", "abort", destination, "sales")

    assert result.exit_code == 8
    assert "was not aborted" in result.stderr
    assert job.phase() is JobPhase.COMMITTED


def test_jobs_recover_recovers_expired_jobs_and_a_dry_run_only_reports_them(
    run: Run, destination: str, settings: Settings
) -> None:
    lapsed_job(destination, settings, "lapsed")
    open_written_job(destination, settings, "alive")

    dry = document(run("jobs", "recover", destination, "--all", "--dry-run", "--json"))
    assert {r["job_id"]: (r["action"], r["ended"]) for r in dry} == {
        "alive-g1": ("leave alone", "open"),
        "lapsed-g1": ("abort", "open"),
    }

    wet = document(run("jobs", "recover", destination, "--all", "--json"))
    assert {r["job_id"]: r["ended"] for r in wet} == {"alive-g1": "open", "lapsed-g1": "failed"}


@pytest.mark.parametrize("arguments", [[], ["sales", "--all"]])
def test_jobs_recover_requires_either_a_job_or_all(run: Run, destination: str, arguments: list[str]) -> None:
    result = run("jobs", "recover", destination, *arguments)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: jobs recover: give either one JOB or --all")


@pytest.mark.parametrize("verb", ["commit", "abort", "recover"])
def test_a_command_that_ends_a_job_deletes_its_set_up_artefacts(
    run: Run, destination: str, settings: Settings, verb: str
) -> None:
    world = World(settings.home.parent, destination, options={"journal_url": None})
    job = open_job(destination, "sales", artefacts=uploaded(world), settings=settings)
    write(job)
    job.suspend(0.0)
    shown = run("jobs", "show", destination, "sales").stdout
    assert "rates.py (blobs of etl-upload)" in shown
    assert bytes_of(world) != []

    assert run("jobs", verb, destination, job.job_id).exit_code == 0

    assert bytes_of(world) == []
