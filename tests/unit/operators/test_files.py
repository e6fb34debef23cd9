"""LeaseRecoveryOperator closes files of ended writers, and frees the space of deleted ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from lockgate.operators import LeaseRecoveryOperator
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.airflow.task_run import TaskRun


@pytest.fixture
def ended(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Leave a flushed file without its writer, and a deleted one; return the settings."""
    for name, value in {"RENEW": "0.2", "SOFT": "0.4", "HARD": "0.8"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.5")
    short = load_settings()
    assert short.home == settings.home
    with open_files(short) as files:
        writer = files.create("/a.log")
        writer.write(b"flushed")
        writer.flush()
        with files.create("/b.log") as other:
            other.write(b"gone")
        files.delete("/b.log")
    return short


def run(**arguments: Any) -> Any:
    return LeaseRecoveryOperator(task_id="recover", **arguments).execute(TaskRun().context())


def test_a_file_of_an_ended_writer_is_closed_and_deleted_blocks_are_removed(ended: Settings) -> None:
    time.sleep(1)
    assert run(report_only=True) == {"recovered": 1, "removed_blocks": 1}
    assert run() == {"recovered": 1, "removed_blocks": 1}
    assert run() == {"recovered": 0, "removed_blocks": 0}
    with open_files(ended) as files:
        assert files.open("/a.log").read() == b"flushed"
        assert not files.status("/a.log").is_open


def test_in_safe_mode_nothing_is_removed_and_the_log_says_why(
    ended: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    time.sleep(1)
    assert run()["recovered"] == 1
    with open_files(ended) as files:
        files.delete("/a.log")
    journal = configured_journal(ended)
    assert journal is not None
    add_operators_reason(journal, "a test")
    assert run() == {"recovered": 0, "removed_blocks": 0}
    assert "nothing of deleted files was removed: " in capsys.readouterr().out


def test_a_file_whose_volume_is_away_fails_the_task_which_names_it(ended: Settings) -> None:
    volumes = ended.home_dir / "volume"
    volumes.rename(ended.home_dir / "away")
    time.sleep(1)
    with pytest.raises(AirflowException, match=r"1 files were not recovered.*/a\.log"):
        run()
    (ended.home_dir / "away").rename(volumes)
    time.sleep(1)
    assert run()["recovered"] == 1
    journal = configured_journal(ended)
    assert journal is not None
    with open_files(ended) as files:
        assert Leases(journal).look(f"file:{files.status('/a.log').inode}") is None
