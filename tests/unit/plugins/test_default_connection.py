"""The pages read the journal of the connection that tasks have by default, and say which one is empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockgate.plugins.airflow.default_connection import EVERY_S, DefaultConnection
from lockgate.plugins.web.api.jobs import job_counts
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.airflow.connections import connect, forget_credentials
from tests.unit.plugins.web.served import host


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_credentials(tmp_path, monkeypatch)


def filled_journal(tmp_path: Path, name: str) -> Settings:
    """Return the settings of a journal with one job that has not ended."""
    settings = load_settings(journal_url=f"sqlite:///{tmp_path / name}")
    open_job(str(tmp_path / "lake"), name, settings=settings)
    return settings


def test_the_pages_see_the_jobs_of_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = filled_journal(tmp_path, "a.db").journal_url
    connect(monkeypatch, "lockgate_default", conn_type="lockgate", extra={"journal_url": url})

    counts = job_counts(Reads(DefaultConnection()), host())

    assert (counts.unended, counts.journal, counts.empty_why) == (1, url, "")


def test_a_connection_that_is_made_or_changed_while_the_server_runs_is_read_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    reads = Reads(DefaultConnection(lambda: now_s[0]))
    assert job_counts(reads, host()).unended == 0
    first = reads.settings

    url = filled_journal(tmp_path, "a.db").journal_url
    connect(monkeypatch, "lockgate_default", conn_type="lockgate", extra={"journal_url": url})
    assert reads.settings is first
    now_s[0] += EVERY_S
    assert job_counts(reads, host()).unended == 1
    changed = reads.settings
    now_s[0] += EVERY_S
    assert reads.settings is changed  # nothing has changed: the journal's client is kept


def test_an_empty_journal_is_no_all_clear_but_named_with_where_another_is_set(tmp_path: Path) -> None:
    counts = job_counts(Reads(DefaultConnection()), host())

    assert counts.needs_you == 0
    assert str(tmp_path / "home" / "journal.db") in counts.empty_why
    assert host().settings_from in counts.empty_why


def test_a_server_without_a_journal_gives_no_all_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")

    assert "no journal" in job_counts(Reads(DefaultConnection()), host()).empty_why


def test_a_connection_of_another_type_or_with_a_missing_one_is_an_error_and_no_all_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, "lockgate_default", conn_type="http")
    with pytest.raises(InvalidInputError, match="name one of type lockgate"):
        job_counts(Reads(DefaultConnection()), host())

    connect(monkeypatch, "lockgate_default", conn_type="lockgate", extra={"aws_conn_id": "gone"})
    with pytest.raises(InvalidInputError, match="aws_conn_id='gone'"):
        job_counts(Reads(DefaultConnection()), host())


def test_the_secrets_of_a_connection_are_in_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled_journal(tmp_path, "a.db").journal_url
    connect(
        monkeypatch,
        "lockgate_default",
        conn_type="lockgate",
        extra={"journal_url": url, "broker_url": "redis://h/1", "broker_password": "s3cret"},
    )

    assert "s3cret" not in json.dumps(job_counts(Reads(DefaultConnection()), host()).model_dump())
