"""Settings are read from the environment; what cannot be right is refused with its name and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings, load_intervals, load_settings, settings_in_effect


def test_variables_of_each_kind_become_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BLOB_DIR": "/blobs",
        "STAGING_ROOTS": '["/a", "/b"]',
        "OBSERVER_URLS": '["postgresql://one/db"]',
        "COMMITTERS": '{"s3://lake/": "magic"}',
        "ALWAYS_PRIMARY": "true",
        "S3_PATH_STYLE": "0",
        "LEASE_RENEW_S": "2.5",
        "S3_MAX_ATTEMPTS": "3",
        "UNKNOWN": "is ignored",
    }.items():
        monkeypatch.setenv(f"LOCKGATE_{name}", value)

    settings = load_settings()

    assert (settings.blob_dir, settings.staging_roots) == (Path("/blobs"), (Path("/a"), Path("/b")))
    assert (settings.observer_urls, settings.committers) == (
        ("postgresql://one/db",),
        {"s3://lake/": "magic"},
    )
    assert (settings.always_primary, settings.s3_path_style) == (True, False)
    assert (settings.lease_renew_s, settings.s3_max_attempts) == (2.5, 3)


def test_an_error_names_every_invalid_variable_with_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = {
        "JOB_LOG": "maybe",
        "PARALLELISM": "300",
        "S3_CLIENT": "curl",
        "BROKER_PREFIX": "a",
        "LOG_LAPSE_S": "nan",
        "OBSERVER_URLS": "postgresql://user:s3cr3t@standby/db",
        "HOME": "s3://lake/home",
    }
    for name, value in invalid.items():
        monkeypatch.setenv(f"LOCKGATE_{name}", value)

    with pytest.raises(InvalidInputError) as refused:
        load_settings()

    assert sorted(str(refused.value).removeprefix("settings: ").split("; ")) == [
        "LOCKGATE_BROKER_PREFIX is 'a': it must be empty, or text without spaces that ends in one of : _ . -",
        "LOCKGATE_HOME is 's3://lake/home': it must be a path, not a URL",
        "LOCKGATE_JOB_LOG is 'maybe': it must be true or false",
        "LOCKGATE_LOG_LAPSE_S is 'nan': it must be seconds, above 0 and at most a century",
        'LOCKGATE_OBSERVER_URLS cannot be read: it must be JSON, such as ["one", "another"]',
        "LOCKGATE_PARALLELISM is '300': it must be a number from 1 to 256",
        "LOCKGATE_S3_CLIENT is 'curl': it must be crt or boto3",
    ]


def test_settings_of_a_program_have_the_same_limits() -> None:
    with pytest.raises(InvalidInputError, match=r"LOCKGATE_PART_BYTES is 1: it must be bytes, from 5242880"):
        Settings(part_bytes=1)
    with pytest.raises(InvalidInputError, match="LOCKGATE_S3_TIMEOUT_S is 0"):
        structs.replace(Settings(), s3_timeout_s=0)


def test_settings_in_effect_take_the_place_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL", "of-the-environment")
    with settings_in_effect(Settings(journal="given")):
        assert load_settings(checkpoints_kept=1) == Settings(journal="given", checkpoints_kept=1)
    assert load_settings().journal == "of-the-environment"


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


@pytest.mark.parametrize("scope", ["prod/eu", "prod\n", "x" * 61])
def test_a_scope_that_cannot_be_part_of_an_owner_is_refused(
    monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", scope)
    with pytest.raises(
        InvalidInputError, match=r"LOCKGATE_AIRFLOW_SCOPE is .*: it must be at most 60 letters"
    ):
        load_settings()
    monkeypatch.setenv("LOCKGATE_AIRFLOW_SCOPE", "prod-eu_2.b")
    assert load_settings().airflow_scope == "prod-eu_2.b"


def test_an_unreferenced_blob_is_kept_for_half_an_hour_to_an_hour_by_default() -> None:
    assert Settings().retention_interval_s == 1800.0


@pytest.mark.parametrize("value", ["inf", "1e10"])
def test_a_time_beyond_the_range_of_the_clock_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOCKGATE_RETENTION_INTERVAL_S", value)
    with pytest.raises(InvalidInputError, match="LOCKGATE_RETENTION_INTERVAL_S"):
        load_settings()


def test_a_mistake_in_another_setting_does_not_stop_the_intervals_of_the_dags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "TRIGGER_SOURCES": "s3://raw",
        "LEASE_RENEW_S": "1000",
        "RECOVERY_MINUTES": "0.5",
        "RETENTION_INTERVAL_S": "60",
    }.items():
        monkeypatch.setenv(f"LOCKGATE_{name}", value)

    intervals = load_intervals()

    assert (intervals.recovery_minutes, intervals.retention_interval_s) == (0.5, 60.0)
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_SOURCES"):
        load_settings()
    monkeypatch.setenv("LOCKGATE_RECOVERY_MINUTES", "0")
    with pytest.raises(
        InvalidInputError, match="LOCKGATE_RECOVERY_MINUTES is '0': it must be a number of min"
    ):
        load_intervals()
