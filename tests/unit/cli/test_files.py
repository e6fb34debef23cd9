"""Tests of `lockgate files`: each command is a process of its own, beside one that writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockgate.fsspec import AppendableFileSystem
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    LeaseHeldError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.home_files import open_files
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
        "from lockgate.storage_core.files.home_files import open_files\n"
        "from lockgate.storage_core.settings import Settings, load_settings\n"
        "import sys\n"
        "with open_files(load_settings(), writes=True) as files:\n"
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


def test_a_recovery_waits_for_no_volume_that_is_named_as_lost(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RENEW": "0.1", "SOFT": "0.2", "HARD": "0.5"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.3")
    with open_files(load_settings(), writes=True) as ended:
        writer = ended.create("/a.log")
        writer.write(b"flushed")
        writer.flush()
    (volume,) = (settings.home_dir / "volumes").iterdir()
    name = (volume / "volume.id").read_text()
    volume.rename(settings.home_dir / "gone")
    threading.Event().wait(0.6)

    assert "or more" in run("files", "stat", "/a.log").stdout
    assert AppendableFileSystem().info("/a.log")["size"] is None
    waits = run("files", "recover", "/a.log")
    assert waits.exit_code == StoreUnavailableError.exit_code
    assert name in waits.output
    threading.Event().wait(0.6)
    unknown = run("files", "recover", "/a.log", "--lost", "none")
    assert (unknown.exit_code, "no volume none" in unknown.output) == (InvalidInputError.exit_code, True)
    assert run("files", "recover", "--lost", name).exit_code == InvalidInputError.exit_code

    (found,) = document(run("files", "recover", "/a.log", "--lost", name, "--json"))["recovered"]
    assert (found["path"], found["length_bytes"]) == ("/a.log", 0)
    assert run("files", "cat", "/a.log").stdout == ""


def test_fsck_names_what_is_wrong_and_changes_nothing(run: Run, settings: Settings, source: Path) -> None:
    run("files", "append", str(source), "/logs/a.log")
    whole = run("files", "fsck", "--verify")
    assert (whole.exit_code, "no replica is wrong" in whole.stdout) == (0, True)
    (volume,) = document(run("volumes", "list", "--json"))
    assert (volume["used_bytes"] > 8, volume["why_not"]) == (True, "")
    assert volume["volume"] in run("volumes", "list").stdout

    (log,) = (settings.home_dir / "volumes").glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    assert run("files", "fsck", "--json").exit_code == 0
    damaged = run("files", "fsck", "/logs", "--verify", "--json")
    assert damaged.exit_code == 16
    (one,) = document(damaged)["findings"]
    assert (one["problem"], one["path"], one["volume"]) == ("corrupt", "/logs/a.log", volume["volume"])
    log.unlink()
    assert "corrupt" in run("files", "fsck").stdout
    assert run("files", "fsck", "/none").exit_code == 1


def test_replicas_that_no_block_names_are_counted_then_deleted(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    for name, value in {"RENEW": "0.1", "SOFT": "0.2", "HARD": "0.5"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.3")
    made = run("files", "append", str(source), "/a.log")
    assert (made.exit_code, made.output) == (0, "/a.log: 8 bytes\n")
    (volume,) = (settings.home_dir / "volumes").iterdir()
    kept = {path.name: path.read_bytes() for path in volume.glob("*.[hl]*") if path.stem.isdecimal()}
    run("files", "rm", "/a.log")
    run("files", "clean", "--yes")
    for name, data in kept.items():
        (volume / name).write_bytes(data)

    assert "1 replica left over: a dry run" in run("volumes", "clean").stdout
    assert len(list(volume.glob("*.head"))) == 1
    done = document(run("volumes", "clean", "--yes", "--json"))
    assert done == {"dry_run": False, "found": 1, "deleted": 1, "kept": 0, "set_aside": 0, "discarded": 0}
    assert not list(volume.glob("*.head"))
    assert "0 replicas left over: 0 deleted" in run("volumes", "clean", "--yes").stdout


def test_a_volume_with_a_file_to_recover_is_left_to_the_recovery(settings: Settings) -> None:
    with open_files(settings, writes=True) as ended:
        writer = ended.create("/a.log")
        writer.write(b"flushed")
        writer.flush()
    with open_files(settings, writes=True) as files, files.create("/b.log") as other:
        other.write(b"x")
    assert len(list((settings.home_dir / "volumes").iterdir())) == 2


def test_a_process_that_reads_a_file_does_not_keep_another_from_its_recovery(
    run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    for name, value in {"RENEW": "0.1", "SOFT": "0.2", "HARD": "0.5"}.items():
        monkeypatch.setenv(f"LOCKGATE_LEASE_{name}_S", value)
    monkeypatch.setenv("LOCKGATE_COMMIT_WINDOW_S", "0.3")
    with open_files(load_settings(), writes=True) as ended:
        for path in ("/a.log", "/b.log", "/c.log"):
            writer = ended.create(path)
            writer.write(b"flushed")
            writer.flush()
    (name,) = (path.read_text() for path in (settings.home_dir / "volumes").glob("*/volume.id"))
    notebook = AppendableFileSystem()
    assert notebook.cat("/a.log") == notebook.cat("/b.log") == b"flushed"
    threading.Event().wait(0.6)
    assert "/a.log" in run("files", "recover", "/a.log").output
    assert run("files", "append", str(source), "/b.log").exit_code == 0
    assert notebook.cat("/b.log") == b"flushedone\ntwo\n"

    with notebook.open("/a.log", "ab") as log:
        log.write(b", more")
    owned = run("files", "recover", "/c.log", "--lost", name)
    assert owned.exit_code == StoreUnavailableError.exit_code
    assert f"with pid {os.getpid()}" in owned.output
    assert "not given up: end the process" in owned.output
    assert "--lost" not in owned.output
    notebook.close()
    threading.Event().wait(0.6)
    assert run("files", "recover", "/c.log").exit_code == 0
    assert run("files", "cat", "/c.log").stdout == "flushed"


def test_a_volume_with_a_header_that_cannot_be_read_stops_no_new_file(
    run: Run, settings: Settings, source: Path
) -> None:
    run("files", "append", str(source), "/a.log")
    (damaged,) = (settings.home_dir / "volumes").glob("*/*.head")
    damaged.write_bytes(b"damaged")
    assert run("files", "append", str(source), "/b.log").exit_code == 0
    assert run("files", "cat", "/b.log").stdout == source.read_text()


def test_an_append_to_a_file_whose_volume_another_process_owns_says_so(settings: Settings, run: Run) -> None:
    with open_files(settings, writes=True) as files:
        with files.create("/a.log") as writer:
            writer.write(b"0123456789")
        command = [sys.executable, "-c", MAIN, "files", "append", "/a.log"]
        done = subprocess.run(command, input="x", capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == StoreUnavailableError.exit_code
        assert "belongs to another process of this machine" in done.stderr
        assert "nothing was committed" in done.stderr
        with files.append("/a.log") as writer:
            writer.write(b"X")
    assert run("files", "cat", "/a.log").stdout == "0123456789X"


def test_files_need_a_journal(run: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.home_dir
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", "none")
    found = run("files", "ls")
    assert found.exit_code == InvalidInputError.exit_code
    assert "LOCKGATE_JOURNAL_URL" in found.output


def test_volumes_report_shows_each_volume_and_marks_nothing_that_is_whole(
    run: Run, settings: Settings, source: Path
) -> None:
    run("files", "append", str(source), "/a.log")
    (found,) = document(run("volumes", "report", "--json"))
    assert (found["replicas"], found["length_bytes"], found["differences"], found["why_not"]) == (1, 8, 0, "")
    assert found["volume"] in run("volumes", "report").stdout
    (head,) = (settings.home_dir / "volumes").glob("*/*.head")
    head.unlink()
    (found,) = document(run("volumes", "report", "--json"))
    assert (found["replicas"], found["differences"], found["only_ones"]) == (0, 0, 1)


def test_volumes_repair_shows_what_it_would_copy_and_copies_with_yes(run: Run, source: Path) -> None:
    run("files", "append", str(source), "/a.log")
    assert "0 blocks with too few good replicas: a dry run" in run("volumes", "repair").stdout
    assert "copies made: 0, blocks not copied: 0" in run("volumes", "repair", "--yes").stdout
    assert document(run("volumes", "repair", "--yes", "--json")) == {"dry_run": False, "blocks": []}


def test_volumes_verify_names_a_damaged_replica_and_marks_it_unless_it_is_the_only_one(
    run: Run, settings: Settings, source: Path
) -> None:
    run("files", "append", str(source), "/a.log")
    whole = run("volumes", "verify", "--mb-per-s", "50")
    assert whole.exit_code == 0
    assert "no replica is wrong" in whole.stdout
    (log,) = (settings.home_dir / "volumes").glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    damaged = run("volumes", "verify", "--json")
    assert damaged.exit_code == 16
    (found,) = document(damaged)
    assert (found["quarantined"], found["only_ones"]) == (0, 1)
    assert [(one["problem"], one["path"]) for one in found["findings"]] == [("corrupt", "/a.log")]
    assert "/a.log" in run("volumes", "verify", found["volume"]).stdout
    assert run("volumes", "verify", "none").exit_code == InvalidInputError.exit_code


def test_leave_safe_mode_counts_and_accepts_blocks_without_a_good_replica(
    run: Run, settings: Settings, source: Path
) -> None:
    run("files", "append", str(source), "/a.log")
    (head,) = (settings.home_dir / "volumes").glob("*/*.head")
    head.unlink()
    assert "1 of 1 block without a replica" in run("volumes", "report").stdout
    refused = run("files", "clean", "--yes")
    assert refused.exit_code == SafeModeError.exit_code
    assert "leave-safe-mode" in refused.output
    assert "1 block without a good replica: a dry run" in run("volumes", "leave-safe-mode").stdout
    assert document(run("volumes", "leave-safe-mode", "--yes", "--json")) == {"dry_run": False, "blocks": 1}
    assert run("files", "clean", "--yes").exit_code == 0


def test_volumes_rebalance_shows_the_moves_and_takes_no_bad_threshold(run: Run, source: Path) -> None:
    run("files", "append", str(source), "/a.log")
    assert "no block is to be moved" in run("volumes", "rebalance").stdout
    assert document(run("volumes", "rebalance", "--yes", "--json")) == {"dry_run": False, "moves": []}
    assert run("volumes", "rebalance", "--threshold", "100").exit_code == 2


def test_a_volume_is_declared_lost_found_and_forgotten(run: Run, source: Path) -> None:
    run("files", "append", str(source), "/a.log")
    (listed,) = document(run("volumes", "list", "--json"))
    name = listed["volume"]
    shown = run("volumes", "lost", name)
    assert "/a.log" in shown.stdout
    assert "0 blocks with other good replicas, 1 without, 0 being written: a dry run" in shown.stdout
    assert run("files", "cat", "/a.log").exit_code == 0
    done = document(run("volumes", "lost", name, "--yes", "--json"))
    assert [one["path"] for one in done["without"]] == ["/a.log"]
    assert document(run("volumes", "list", "--json"))[0]["lost_s"] is not None
    assert run("files", "cat", "/a.log").exit_code == StoreUnavailableError.exit_code
    assert run("files", "fsck").exit_code == 16
    assert run("volumes", "forget", name).exit_code == ConflictError.exit_code
    assert run("volumes", "found", name).exit_code == 0
    assert run("files", "cat", "/a.log").stdout == source.read_text()
    for command in (("lost", "none"), ("lost", "none", "--yes"), ("found", "none"), ("forget", "none")):
        unknown = run("volumes", *command)
        assert (unknown.exit_code, "no volume none" in unknown.output) == (InvalidInputError.exit_code, True)
