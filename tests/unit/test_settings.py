"""Contradictory settings are refused with their names and the remedy."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_intervals, load_settings


@pytest.mark.parametrize("name", ["LOCKGATE_COMMIT_WINDOW_S", "LOCKGATE_LEASE_RENEW_S"])
def test_a_limit_not_below_the_hard_limit_of_the_lease_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # A driver suspended past its hard limit would decide without asking the journal again.
    monkeypatch.setenv(name, "120")
    with pytest.raises(InvalidInputError, match=f"{name} is 120 and LOCKGATE_LEASE_HARD_S 120.*smaller"):
        load_settings()
    monkeypatch.setenv("LOCKGATE_LEASE_HARD_S", "121")
    load_settings()


def test_the_former_name_of_the_retention_interval_is_accepted_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKGATE_LIBRARY_CACHE_MANAGER_CLEANUP_INTERVAL_S", "3600")
    with pytest.warns(FutureWarning, match="set LOCKGATE_RETENTION_INTERVAL_S instead"):
        assert load_settings().retention_interval_s == 3600.0


def test_the_retention_interval_takes_precedence_over_its_former_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKGATE_LIBRARY_CACHE_MANAGER_CLEANUP_INTERVAL_S", "3600")
    monkeypatch.setenv("LOCKGATE_RETENTION_INTERVAL_S", "60")
    with pytest.warns(FutureWarning, match="is also set and takes precedence"):
        assert load_settings().retention_interval_s == 60.0


@pytest.mark.parametrize("scope", ["prod/eu", "a b", "ü", "prod\n", "x" * 61])
def test_a_scope_that_cannot_be_part_of_an_owner_is_refused(
    monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", scope)
    with pytest.raises(
        InvalidInputError, match=r"LOCKGATE_AIRFLOW_SCOPE.*is not a scope: use at most 60 letters"
    ):
        load_settings()
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", "prod-eu_2.b")
    assert load_settings().airflow_scope == "prod-eu_2.b"


def test_an_unreferenced_blob_is_kept_for_half_an_hour_to_an_hour_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCKGATE_RETENTION_INTERVAL_S", raising=False)
    assert load_settings().retention_interval_s == 1800.0


@pytest.mark.parametrize("value", ["inf", "nan", "1e10"])
@pytest.mark.parametrize("name", ["RETENTION_INTERVAL_S", "MESSAGE_LAPSE_S", "LOG_INTERVAL_S", "LOG_LAPSE_S"])
def test_a_time_beyond_the_range_of_the_clock_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"LOCKGATE_{name}", value)
    with pytest.raises(InvalidInputError, match=f"LOCKGATE_{name}"):
        load_settings()


def test_a_mistake_in_another_setting_does_not_stop_the_intervals_of_the_dags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "TRIGGER_SOURCES": "s3://raw",
        "S3_MAX_ATTEMPTS": "many",
        "LEASE_RENEW_S": "1000",
        "RECOVERY_MINUTES": "0.5",
        "LIBRARY_CACHE_MANAGER_CLEANUP_INTERVAL_S": "60",
    }.items():
        monkeypatch.setenv(f"LOCKGATE_{name}", value)

    with pytest.warns(FutureWarning, match="set LOCKGATE_RETENTION_INTERVAL_S instead"):
        intervals = load_intervals()

    assert (intervals.recovery_minutes, intervals.retention_interval_s) == (0.5, 60.0)
    monkeypatch.delenv("LOCKGATE_LIBRARY_CACHE_MANAGER_CLEANUP_INTERVAL_S")
    with pytest.raises(InvalidInputError, match="trigger_sources"):
        load_settings()
    monkeypatch.setenv("LOCKGATE_RECOVERY_MINUTES", "0")
    with pytest.raises(InvalidInputError, match="LOCKGATE_RECOVERY_MINUTES: Input should be greater than 0"):
        load_intervals()
