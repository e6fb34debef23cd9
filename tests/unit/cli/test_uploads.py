"""Tests of `lockgate uploads`: open uploads, their owners, their cost, and which ones can be aborted."""

from __future__ import annotations

import pytest

from lockgate.storage_core.ids import new_token
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store
from tests.support.cli import Run, committed_job, document, lapsed_job, open_written_job


def test_uploads_abort_is_a_dry_run_without_yes(run: Run, destination: str, settings: Settings) -> None:
    job = open_written_job(destination, settings)
    stray = job.store.begin_upload(f"b-{job.short_id}.csv", "0" * 32)  # type: ignore[arg-type]
    job.commit()
    job.store.begin_upload(f"b-{job.short_id}.csv", "0" * 32)  # type: ignore[arg-type]

    listed = document(run("uploads", "list", destination, "--json"))["uploads"]
    assert [(swept["owner"], swept["action"]) for swept in listed] == [("sales-g1", "abort")]
    assert stray not in {swept["upload_id"] for swept in listed}

    dry = run("uploads", "abort", destination)
    assert "a dry run: nothing was aborted" in dry.stdout
    assert len(document(run("uploads", "list", destination, "--json"))["uploads"]) == 1

    assert run("uploads", "abort", destination, "--yes").exit_code == 0
    assert document(run("uploads", "list", destination, "--json"))["uploads"] == []


def stray(destination: str, settings: Settings, key: str, data: bytes = b"") -> None:
    store = open_store(destination, settings)
    upload_id = store.begin_upload(key, new_token())
    store.put_part(key, upload_id, 1, 0, data)


def test_uploads_list_shows_size_and_cost_by_action(
    run: Run, destination: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_STORAGE_PRICE_GB_MONTH", str(2**30 / 1000))
    job = committed_job(destination, settings)
    stray(destination, settings, f"a-{job.short_id}.csv", b"x" * 2048)
    stray(destination, settings, "whose.bin", b"x" * 1024)

    shown = run("uploads", "list", destination).stdout
    report = document(run("uploads", "list", destination, "--json"))

    rows = [line.split() for line in shown.splitlines()]
    assert ["abort", "1", "2.0", "KiB", "2.05"] in rows
    assert ["all", "2", "3.0", "KiB", "3.07"] in rows
    assert "sweep again, 24 hours after" in shown
    assert {action: figures["size"] for action, figures in report["by_action"].items()} == {
        "abort": 2048,
        "stage": 1024,
    }
    assert report["total"]["monthly_cost_usd"] == pytest.approx(3.072)


def test_uploads_abort_refuses_uploads_that_a_job_may_need_and_names_the_remedy(
    run: Run, destination: str, settings: Settings
) -> None:
    alive, lapsed = open_written_job(destination, settings, "alive"), lapsed_job(destination, settings)

    by_name = run("uploads", "abort", destination, "--owner", "alive", "--yes")
    by_id = run("uploads", "abort", destination, "--owner", lapsed.job_id, "--yes")

    assert (by_name.exit_code, by_id.exit_code) == (8, 8)
    assert f"lockgate jobs abort {alive.store.url} {alive.job_id}" in by_name.stdout
    assert f"lockgate jobs recover {alive.store.url} {lapsed.job_id}" in by_id.stdout
    assert run("uploads", "abort", destination, "--yes").exit_code == 0
    assert run("uploads", "expect", destination, "2").exit_code == 0


def test_uploads_expect_exits_with_8_unless_exactly_that_many_are_open(
    run: Run, destination: str, settings: Settings
) -> None:
    open_written_job(destination, settings)
    stray(destination, settings, "whose.bin")

    wrong = run("uploads", "expect", destination, "0")
    assert (wrong.exit_code, wrong.stdout) == (8, f"2 open uploads at {destination}, 0 expected\n")
    assert run("uploads", "expect", destination, "3").exit_code == 8
    assert run("uploads", "expect", destination, "2").exit_code == 0
    assert run("uploads", "expect", destination, "1", "--owner", "none").exit_code == 0
    assert run("uploads", "expect", destination, "1", "--owner", "sales").exit_code == 0
    assert run("uploads", "expect", destination, "0", "--older-than", "1h").exit_code == 0
    completed = run("uploads", "expect", destination, "0", "--json")
    assert document(completed) == {"destination": destination, "expected": 0, "open": 2}


@pytest.mark.parametrize("age", ["7", "-1d", "1h30m"])
def test_an_invalid_age_is_named_in_the_error(run: Run, destination: str, age: str) -> None:
    result = run("uploads", "list", destination, f"--older-than={age}")

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --older-than {age!r} is not an age; ")


def test_a_prefix_outside_the_destination_and_an_unknown_owner_are_refused(
    run: Run, destination: str, settings: Settings
) -> None:
    committed_job(destination, settings)
    assert run("uploads", "list", destination, "--prefix", "../other").exit_code == 2
    assert run("uploads", "abort", destination, "--owner", "unheard-of", "--yes").exit_code == 4


def test_a_negative_number_of_expected_uploads_is_bad_input(run: Run, destination: str) -> None:
    result = run("uploads", "expect", destination, "-1")

    assert result.exit_code == 2
    assert "N is -1" in result.stderr
