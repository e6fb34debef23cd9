"""Files of ended writers are closed, the space of deleted ones is freed, and old files are deleted."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from lockgate.operators import FileRetentionOperator, LeaseRecoveryOperator
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from lockgate.storage_core.satellite.move import add_mount, status_of_mount
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.satellite.overlay import Overlay
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


def test_files_of_each_journal_are_closed(ended: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNALS", '{"logs": {}}')
    logs = load_settings().for_journal("logs")
    with open_files(logs) as files:
        writer = files.create("/c.log")
        writer.write(b"flushed")
        writer.flush()
    time.sleep(1)
    assert run() == {"recovered": 2, "removed_blocks": 1}
    with open_files(logs) as files:
        assert files.open("/c.log").read() == b"flushed"
        assert not files.status("/c.log").is_open


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


def test_files_of_both_sides_are_deleted_by_path_pattern_and_age(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def retained(**arguments: Any) -> Any:
        return FileRetentionOperator(task_id="delete", **arguments).execute(TaskRun().context())

    with pytest.raises(AirflowSkipException):
        retained()
    monkeypatch.setenv("LOCKGATE_JOURNALS", '{"logs": {}}')
    monkeypatch.setenv("LOCKGATE_FILES_RETENTION", '{"/logs/*.log": 1e-9}')
    logs = configured_journal(load_settings().for_journal("logs"))
    assert logs is not None
    with open_files() as files:
        files.make_directory("/logs")
        files.create("/logs/old.log").close()
        mount = Mount(prefix="/logs", satellite="logs", journal="logs", identity=logs.identity, added_s=0.0)
        add_mount(cast("Overlay", files), mount)
        files.create("/logs/new.log").close()
        files.create("/logs/kept.txt").close()
    assert retained(report_only=True)["files"] == 2
    assert "would delete /logs/old.log" in capsys.readouterr().out
    assert retained()["files"] == 2
    with open_files() as files:
        assert [one.name for one in files.list("/logs")] == ["kept.txt"]
        assert status_of_mount(cast("Overlay", files), mount).old_files == 0
