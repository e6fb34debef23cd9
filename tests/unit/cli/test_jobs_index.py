"""Tests of `lockgate jobs` without a destination: the journal's index finds jobs; a rescan rebuilds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.journal.process_journal import close_journals
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, committed_job, document, lapsed_job, open_written_job, visible


@pytest.fixture
def lakes(destination: str, tmp_path: Path) -> tuple[str, str]:
    """Return two destinations."""
    return destination, str(tmp_path / "warehouse")


def url(destination: str) -> str:
    return f"file://{destination}"


def test_jobs_list_without_a_destination_shows_the_journal_index_and_its_age(
    run: Run, lakes: tuple[str, str], settings: Settings
) -> None:
    committed_job(lakes[0], settings, "sales")
    lapsed_job(lakes[1], settings, "returns")
    open_written_job(lakes[1], settings, "visits")

    shown = run("jobs", "list")
    listed = document(run("jobs", "list", "--json"))

    assert shown.exit_code == 0
    assert "This is an index of the stores, in journal sqlite" in shown.stdout
    assert "last updated at 20" in shown.stdout
    assert "`lockgate jobs rescan DEST` rebuilds it" in shown.stdout
    assert listed["told_s"] == max(found["job"]["changed_s"] for found in listed["jobs"])
    assert {
        (found["job"]["destination"], found["job"]["job_id"], found["job"]["phase"], found["lease"])
        for found in listed["jobs"]
    } == {
        (url(lakes[0]), "sales-g1", "committed", None),
        (url(lakes[1]), "returns-g1", "open", "hard"),
        (url(lakes[1]), "visits-g1", "open", "held"),
    }


def test_a_job_is_shown_committed_and_aborted_without_its_destination(
    run: Run, lakes: tuple[str, str], settings: Settings
) -> None:
    lapsed_job(lakes[0], settings, "sales")
    lapsed_job(lakes[1], settings, "returns")

    assert document(run("jobs", "show", "returns", "--json"))["record"]["job_id"] == "returns-g1"
    assert run("jobs", "commit", "sales").exit_code == 0
    assert run("jobs", "abort", "returns-g1").stdout == "returns-g1 is failed\n"

    assert len(visible(lakes[0])) == 1
    assert visible(lakes[1]) == []


def test_jobs_recover_of_one_job_without_its_destination(
    run: Run, destination: str, settings: Settings
) -> None:
    lapsed_job(destination, settings)

    result = run("jobs", "recover", "sales-g1")

    assert result.exit_code == 0
    assert url(destination) in result.stdout
    assert attach_job(destination, "sales-g1", settings=settings).phase() is JobPhase.FAILED


def test_jobs_recover_all_recovers_expired_jobs_at_every_destination(
    run: Run, lakes: tuple[str, str], settings: Settings
) -> None:
    lapsed_job(lakes[0], settings, "sales")
    lapsed_job(lakes[1], settings, "returns")
    open_written_job(lakes[1], settings, "alive")

    dry = document(run("jobs", "recover", "--all", "--dry-run", "--json"))
    assert {(r["destination"], r["job_id"], r["action"], r["ended"]) for r in dry} == {
        (url(lakes[0]), "sales-g1", "abort", "open"),
        (url(lakes[1]), "returns-g1", "abort", "open"),
    }

    wet = document(run("jobs", "recover", "--all", "--json"))
    assert {(r["job_id"], r["ended"]) for r in wet} == {("sales-g1", "failed"), ("returns-g1", "failed")}
    assert attach_job(lakes[1], "alive-g1", settings=settings).phase() is JobPhase.OPEN


def test_a_job_id_found_at_two_destinations_is_refused_with_both_named(
    run: Run, lakes: tuple[str, str], settings: Settings
) -> None:
    for lake in lakes:
        committed_job(lake, settings, "sales")

    result = run("jobs", "show", "sales")

    assert result.exit_code == 8
    assert all(url(lake) in result.stderr for lake in lakes)
    assert run("jobs", "show", lakes[1], "sales").exit_code == 0


def test_the_error_for_a_job_unknown_to_the_journal_names_the_rescan(run: Run) -> None:
    result = run("jobs", "show", "unheard-of")

    assert result.exit_code == 4
    assert "lockgate jobs rescan" in result.stderr


@pytest.mark.parametrize("command", ["show", "recover"])
def test_a_destination_in_place_of_a_job_is_refused(run: Run, destination: str, command: str) -> None:
    result = run("jobs", command, destination)

    assert result.exit_code == 2
    assert "nothing was done" in result.stderr or "give a job of it" in result.stderr
    assert not Path(destination).exists()


def test_too_many_arguments_are_refused(run: Run, destination: str) -> None:
    assert run("jobs", "show", destination, "sales", "returns").exit_code == 2


@pytest.mark.parametrize("arguments", [["list"], ["show", "sales"], ["recover", "--all"]])
def test_the_destination_is_required_without_a_journal(
    run: Run, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")

    result = run("jobs", *arguments)

    assert result.exit_code == 2
    assert "destination" in result.stderr
    assert "LOCKGATE_JOURNAL_URL=none" in result.stderr


def test_jobs_rescan_rebuilds_a_lost_index_and_a_dry_run_only_reports_it(
    run: Run, destination: str, settings: Settings
) -> None:
    committed_job(destination, settings, "sales")
    lapsed_job(destination, settings, "returns")
    close_journals()
    for path in settings.home_dir.glob("journal.db*"):
        path.unlink()
    wanted = {("sales-g1", "record", "committed"), ("returns-g1", "record", "open")}

    dry = document(run("jobs", "rescan", destination, "--dry-run", "--json"))
    assert {(found["job_id"], found["action"], found["now"]) for found in dry} == wanted
    assert document(run("jobs", "list", "--json"))["jobs"] == []

    wet = document(run("jobs", "rescan", destination, "--json"))
    assert {(found["job_id"], found["action"], found["now"]) for found in wet} == wanted
    assert len(document(run("jobs", "list", "--json"))["jobs"]) == 2
    assert run("jobs", "rescan", destination).stdout == f"the index is up to date for {destination}\n"


def test_a_lease_in_a_lost_journal_is_named_where_jobs_are_listed(
    run: Run, destination: str, settings: Settings
) -> None:
    lapsed_job(destination, settings, "returns")
    close_journals()
    for path in settings.home_dir.glob("journal.db*"):
        path.unlink()

    (job,) = document(run("jobs", "list", destination, "--json"))

    assert (job["phase"], job["lease"]) == ("open", "unknown")
    assert "set LOCKGATE_JOURNAL_URL to that journal" in job["detail"]
