"""Tests of `lockgate files`: each command is a process of its own, beside one that writes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockgate.fsspec import AppendableFileSystem
from lockgate.storage_core.errors import (
    InvalidInputError,
    LeaseHeldError,
    StoreUnavailableError,
)
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.cli import Run, document

MAIN = "from lockgate.storage_core.cli.root_command import main; main()"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"one\ntwo\n")
    return path


def test_the_file_of_a_killed_process_is_recovered_by_another(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RENEW": "0.2", "SOFT": "0.5", "HARD": "1.5"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "1")
    script = (
        "from lockgate.storage_core.satellite.open_overlay import open_files\n"
        "from lockgate.storage_core.settings import Settings, load_settings\n"
        "import sys\n"
        "with open_files(load_settings()) as files:\n"
        "    writer = files.create('/a.log')\n"
        "    writer.write(b'flushed'); writer.flush()\n"
        "    print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == b"ready\n"
        assert run("files", "recover", "/a.log").exit_code == LeaseHeldError.exit_code
        held = run("files", "append", "/dev/null", "/a.log")
        assert (held.exit_code, "/a.log: its writer may live" in held.output) == (
            LeaseHeldError.exit_code,
            True,
        )
        assert run("files", "truncate", "3", "/a.log").exit_code == LeaseHeldError.exit_code
        assert document(run("files", "stat", "/a.log", "--json"))[0]["length_bytes"] == 7
        assert "open file, 7 bytes" in run("files", "stat", "/a.log").stdout
        assert re.search(r"^open +7 .* /a.log$", run("files", "ls").stdout)
        assert run("files", "cat", "/a.log").stdout == "flushed"
        writing.kill()
    assert run("files", "cat", "/a.log").stdout == "flushed"
    threading.Event().wait(1.6)
    (found,) = document(run("files", "recover", "--json"))["recovered"]
    assert (found["path"], found["length_bytes"], found["why_not"]) == ("/a.log", 7, "")
    assert run("files", "recover").stdout == "no file needs recovery\n"
    assert run("files", "cat", "/a.log").stdout == "flushed"


def test_a_recovery_accepts_the_loss_of_a_volume_if_it_is_told_to(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RENEW": "0.1", "SOFT": "0.2", "HARD": "0.5"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.3")
    with open_files(load_settings()) as ended:
        writer = ended.create("/a.log")
        writer.write(b"flushed")
        writer.flush()
    volume = settings.home_dir / "volume"
    name = (volume / "volume.id").read_text()
    volume.rename(settings.home_dir / "gone")
    threading.Event().wait(0.6)

    assert "or more" in run("files", "stat", "/a.log").stdout
    assert AppendableFileSystem().info("/a.log")["size"] is None
    assert AppendableFileSystem().du("/") == 7
    waits = run("files", "recover", "/a.log")
    assert waits.exit_code == StoreUnavailableError.exit_code
    assert name in waits.output
    threading.Event().wait(0.6)
    assert run("files", "recover", "--accept-loss").exit_code == InvalidInputError.exit_code

    (found,) = document(run("files", "recover", "/a.log", "--accept-loss", "--json"))["recovered"]
    assert (found["path"], found["length_bytes"]) == ("/a.log", 0)
    assert run("files", "cat", "/a.log").stdout == ""


def test_fsck_names_what_is_wrong_and_changes_nothing(run: Run, settings: Settings, source: Path) -> None:
    run("files", "append", str(source), "/logs/a.log")
    whole = run("files", "fsck", "--verify")
    assert (whole.exit_code, "no replica is wrong" in whole.stdout) == (0, True)
    (volume,) = document(run("volumes", "list", "--json"))
    assert (volume["used_bytes"] > 8, volume["why_not"]) == (True, "")
    assert volume["volume"] in run("volumes", "list").stdout

    (log,) = (settings.home_dir / "volume" / "blocks").glob("*/*")
    log.write_bytes(log.read_bytes().replace(b"two", b"twa"))
    assert run("files", "fsck", "--json").exit_code == 0
    damaged = run("files", "fsck", "/logs", "--verify", "--json")
    assert damaged.exit_code == 16
    (one,) = document(damaged)["findings"]
    assert (one["problem"], one["path"], one["volume"]) == ("corrupt", "/logs/a.log", volume["volume"])
    log.unlink()
    log.parent.rmdir()
    assert "lost" in run("files", "fsck").stdout
    assert run("files", "fsck", "/none").exit_code == 1


def test_files_need_a_journal(run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.home_dir
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")
    found = run("files", "ls")
    assert found.exit_code == InvalidInputError.exit_code
    assert "LOCKGATE_JOURNAL_URL" in found.output
