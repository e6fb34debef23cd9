"""`lockgate jobs recover --scan` finds jobs by their records, even if the journal does not know them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate import attach_job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery import prefix_scan
from lockgate.storage_core.commit.recovery.recover import RecoveryResult
from lockgate.storage_core.errors import AccessDeniedError, DestinationNotFoundError
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, committed_job, document, lapsed_job, open_written_job


def test_a_scan_recovers_expired_jobs_below_a_directory_and_a_dry_run_only_reports_them(
    run: Run, tmp_path: Path, settings: Settings
) -> None:
    lake = tmp_path / "lake"
    lapsed_job(str(lake / "sales"), settings, "lapsed")
    open_written_job(str(lake / "logs"), settings, "alive")

    dry = document(run("jobs", "recover", "--scan", str(lake), "--dry-run", "--json"))
    assert {r["job_id"]: (r["action"], r["ended"]) for r in dry} == {
        "alive-g1": ("leave alone", "open"),
        "lapsed-g1": ("abort", "open"),
    }

    shown = run("jobs", "recover", "--scan", str(lake))
    assert shown.exit_code == 0
    assert "lapsed-g1" in shown.stdout
    assert attach_job(str(lake / "sales"), "lapsed-g1", settings=settings).phase() is JobPhase.FAILED
    assert attach_job(str(lake / "logs"), "alive-g1", settings=settings).phase() is JobPhase.OPEN


def test_a_scan_shows_recovered_jobs_even_if_another_destination_cannot_be_listed(
    run: Run, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    for place in ("a", "b", "c"):
        lapsed_job(str(lake / place), settings, f"in-{place}")
    recover_all = prefix_scan.recover_all

    def listed(destination: str, **options: Any) -> Iterator[RecoveryResult]:
        if destination.endswith("/b"):
            raise AccessDeniedError("file:///lake/b: access is denied")
        return recover_all(destination, **options)

    monkeypatch.setattr(prefix_scan, "recover_all", listed)
    shown = run("jobs", "recover", "--scan", str(lake))

    assert shown.exit_code == AccessDeniedError.exit_code
    assert "in-a-g1" in shown.stdout
    assert "in-c-g1" in shown.stdout
    assert shown.stderr == "error: file:///lake/b: access is denied\n"


def test_a_scan_where_no_job_ever_was_is_an_error_as_after_a_typo(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "typo"):
        refused = run("jobs", "recover", "--scan", str(tmp_path / name))
        assert refused.exit_code == DestinationNotFoundError.exit_code == 15
        assert f"there is no destination at, above or below file://{tmp_path / name}" in refused.stderr
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("place", ["", "sales", "sales/day=1"])
def test_a_scan_at_above_or_below_a_destination_that_needs_nothing_succeeds(
    run: Run, tmp_path: Path, settings: Settings, place: str
) -> None:
    committed_job(str(tmp_path / "lake" / "sales"), settings)
    shown = run("jobs", "recover", "--scan", str(tmp_path / "lake" / place))
    assert (shown.exit_code, shown.stdout) == (0, "no job is unfinished\n")


@pytest.mark.parametrize("more", ["sales-g1", "--all"])
def test_a_scan_accepts_neither_a_job_nor_all(run: Run, tmp_path: Path, more: str) -> None:
    result = run("jobs", "recover", "--scan", str(tmp_path), more)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: jobs recover: --scan URL finds every job below that URL")
