"""`lockgate files` for users of `hdfs dfs`: its words, operands, patterns and exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from lockgate.fsspec import AppendableFileSystem
from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    LeaseHeldError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.cli import Run, document

COMMAND = [sys.executable, "-m", "lockgate", "files"]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, with the file `source`."""
    path = tmp_path / "local"
    path.mkdir()
    (path / "source").write_bytes(b"one\ntwo\n")
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def tree(run: Run, local: Path) -> Run:
    """Return `run` with the files a.log, b.log and day/c.log in /logs."""
    assert local
    run("files", "mkdir", "-p", "/logs/day")
    for path in ("/logs/a.log", "/logs/b.log", "/logs/day/c.log"):
        assert run("files", "put", "source", path).exit_code == 0
    return run


def paths(run: Run, *operands: str) -> list[str]:
    return [line.split()[-1] for line in run("files", "ls", *operands).stdout.splitlines()]


def test_files_are_put_got_appended_to_cut_moved_and_deleted(run: Run, local: Path) -> None:
    assert run("files", "mkdir", "-p", "/logs/day").exit_code == 0
    assert run("files", "put", "source", "/logs/").output == ""
    made = run("files", "append", "source", "source", "/logs/source", "--json")
    assert document(made) == {"path": "/logs/source", "length_bytes": 24}
    assert run("files", "truncate", "5", "/logs/source").exit_code == 0
    assert run("files", "mv", "/logs/source", "/logs/day").exit_code == 0
    assert run("files", "mv", "/logs/day/source", "/logs/a.log").exit_code == 0
    assert run("files", "get", "/logs/a.log", "got").exit_code == 0
    assert (local / "got").read_bytes() == b"one\nt"
    assert run("files", "get", "/logs/a.log", "-").stdout == "one\nt"
    assert run("files", "tail", "/logs/a.log", "--bytes", "2").stdout == "\nt"
    assert run("files", "rm", "-r", "/logs/day", "/logs/a.log").stdout == (
        "deleted /logs/day\ndeleted /logs/a.log\n"
    )
    assert "a dry run" in run("files", "clean").stdout
    cleaned = document(run("files", "clean", "--yes", "--json"))
    assert (cleaned["dry_run"], cleaned["kept_blocks"]) == (False, 0)
    assert paths(run, "-R") == ["/logs"]


def test_directories_are_put_and_got_whole(run: Run, local: Path) -> None:
    (local / "sub" / "below").mkdir(parents=True)
    (local / "sub" / "below" / "x").write_bytes(b"x")
    assert run("files", "put", "source", "sub", "/").exit_code == 0
    assert run("files", "get", "/sub", "/source", str(local / "sub")).exit_code == 0
    assert (local / "sub" / "sub" / "below" / "x").read_bytes() == b"x"
    assert (local / "sub" / "source").read_bytes() == b"one\ntwo\n"


def test_standard_input_is_put_and_appended(run: Run) -> None:
    for command in (["put", "-", "/a"], ["append", "/a"], ["append", "-", "/new/b"]):
        subprocess.run([*COMMAND, *command], input=b"line\n", check=True, capture_output=True)
    assert run("files", "cat", "/a", "/new/b").stdout == "line\n" * 3


def test_sizes_are_listed_summed_and_counted(tree: Run) -> None:
    assert re.fullmatch(r"dir +- +\S+ \S+  /logs\n", tree("files", "ls").stdout)
    assert re.search(r"^file +8 B +\S+ \S+  /logs/a.log$", tree("files", "ls", "-h", "/logs").stdout, re.M)
    assert paths(tree, "-R", "/") == [
        "/logs",
        "/logs/a.log",
        "/logs/b.log",
        "/logs/day",
        "/logs/day/c.log",
    ]
    assert tree("files", "du", "/logs").stdout.split() == [
        *("8", "/logs/a.log", "8", "/logs/b.log", "8", "/logs/day"),
    ]
    assert tree("files", "du", "-s", "-h", "/logs").stdout.split() == ["24", "B", "/logs"]
    assert tree("files", "count", "/logs").stdout.split() == ["2", "3", "24", "/logs"]
    (total,) = document(tree("files", "count", "/", "--json"))
    assert total == {"path": "/", "directories": 3, "files": 3, "length_bytes": 24}
    listed = document(tree("files", "ls", "/logs", "--json"))
    assert [(one["path"], one["length_bytes"]) for one in listed][:1] == [("/logs/a.log", 8)]
    assert tree("files", "stat", "%n: %b, %F, %q", "/logs/*").stdout.splitlines() == [
        "a.log: 8, regular file, %q",
        "b.log: 8, regular file, %q",
        "day: 0, directory, %q",
    ]


def test_patterns_are_matched_in_each_name(tree: Run) -> None:
    assert paths(tree, "/lo*/[!b].log") == ["/logs/a.log"]
    assert paths(tree, "/*/day/?.log", "/logs/[^a].log") == ["/logs/day/c.log", "/logs/b.log"]
    assert tree("files", "put", "source", "/logs/[a].log").exit_code == 0
    assert tree("files", "rm", "/logs/[a].log").stdout == "deleted /logs/[a].log\n"
    assert tree("files", "mv", "/logs/*.log", "/logs/day/").exit_code == 0
    assert paths(tree, "/logs/day") == ["/logs/day/a.log", "/logs/day/b.log", "/logs/day/c.log"]


WORDS = {
    "ls /x": "ls: `/x': No such file or directory",
    "ls /x*": "ls: `/x*': No such file or directory",
    "cat /logs": "cat: `/logs': Is a directory",
    "tail /logs/a.log/b": "tail: `/logs/a.log': Not a directory",
    "mkdir /logs": "mkdir: `/logs': File exists",
    "mkdir /x/y": "mkdir: `/x': No such file or directory",
    "put none /b": "put: `none': No such file or directory",
    "put source /logs/a.log": "put: `/logs/a.log': File exists",
    "put source /x/": "put: `/x': No such file or directory",
    "put source source /logs/a.log": "put: `/logs/a.log': Not a directory",
    "get /logs/a.log source": "get: `source': File exists",
    "get /logs/*.log none": "get: `none': No such file or directory",
    "append none /new": "append: `none': No such file or directory",
    "append . /new": "append: `.': Is a directory",
    "mv /logs/a.log /logs/b.log": "mv: `/logs/b.log': File exists",
    "mv /logs/*.log /logs/x": "mv: `/logs/x': No such file or directory",
    "rm /logs/day": "rm: `/logs/day': Is a directory",
    "truncate 0 /x": "truncate: `/x': No such file or directory",
}


def test_an_error_of_a_path_has_the_words_of_hdfs_and_changes_nothing(tree: Run) -> None:
    before = paths(tree, "-R")
    for arguments, error in WORDS.items():
        done = tree("files", *arguments.split())
        assert (done.exit_code, done.output) == (1, f"{error}\n")
    assert paths(tree, "-R") == before


def test_an_operand_that_fails_stops_no_other(tree: Run) -> None:
    done = tree("files", "rm", "/none", "/logs/a.log", "/logs/d*", "/logs/b.log")
    assert done.exit_code == 1
    assert done.stdout == "deleted /logs/a.log\ndeleted /logs/b.log\n"
    assert "`/none'" in done.stderr
    assert "`/logs/day'" in done.stderr
    assert tree("files", "rm", "-f", "/none").exit_code == 0


def test_a_wrong_call_exits_with_2(tree: Run) -> None:
    for arguments in ["cat none", "mv /logs", "rm -r /", "truncate /logs/a.log 5", "frob"]:
        assert tree("files", *arguments.split()).exit_code == InvalidInputError.exit_code


def test_an_error_in_json_is_one_document(tree: Run) -> None:
    error = document(tree("files", "ls", "/none", "--json"))["error"]
    assert (error["type"], error["exit_code"]) == ("PathNotFoundError", 1)


def test_a_dry_run_deletes_nothing(tree: Run) -> None:
    assert tree("files", "rm", "-r", "--dry-run", "/logs").stdout == "would delete /logs: 3 files, 24 B\n"
    assert len(paths(tree, "-R")) == 5


def test_a_put_that_fails_at_its_end_leaves_the_file_that_it_was_to_replace(
    tree: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Files, "rename", Mock(side_effect=JournalUnavailableError("on purpose")))
        assert tree("files", "put", "-f", "source", "/logs/a.log").exit_code != 0
    assert tree("files", "cat", "/logs/a.log").stdout == "one\ntwo\n"


def test_a_file_is_replaced_when_the_new_one_is_complete(tree: Run, local: Path) -> None:
    (local / "source").write_bytes(b"new")
    with open_files() as files, files.create("/logs/a.log._COPYING_") as killed:
        killed.write(b"half")
    assert tree("files", "put", "-f", "source", "/logs/a.log").exit_code == 0
    assert tree("files", "cat", "/logs/a.log").stdout == "new"
    assert tree("files", "get", "-f", "/logs/b.log", "source").exit_code == 0
    assert (local / "source").read_bytes() == b"one\ntwo\n"
    assert "_COPYING_" not in tree("files", "ls", "-R").stdout + str(sorted(local.iterdir()))


@contextmanager
def following(writer: FileWriter) -> Iterator[subprocess.Popen[bytes]]:
    """Start `tail -f` of the file that is being written, which has printed its first line."""
    writer.write(b"one\n")
    writer.flush()
    command = [*COMMAND, "tail", "-f", "/a.log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"one\n"
        yield follower


@pytest.fixture
def files(settings: Settings) -> Iterator[Files]:
    with open_files(settings) as opened:
        yield opened


def test_a_file_is_followed_to_its_end_after_it_was_renamed(files: Files) -> None:
    with files.create("/a.log") as writer:
        with following(writer) as follower:
            assert follower.stdout is not None
            files.rename("/a.log", "/b.log")
            files.create("/a.log").close()
            writer.write(b"two\n")
            writer.flush()
            assert follower.stdout.readline() == b"two\n"
            writer.write(b"three\n")
            writer.close()
            assert follower.stdout.read() == b"three\n"
        assert follower.returncode == 0


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_reader_that_follows_ends_at_ctrl_c_or_when_the_file_is_deleted(
    files: Files, is_deleted: bool
) -> None:
    writer = files.create("/a.log")
    with following(writer) as follower:
        if is_deleted:
            files.delete("/a.log")
        else:
            follower.send_signal(signal.SIGINT)
        assert follower.wait(timeout=60) == (1 if is_deleted else 130)
        assert follower.stderr is not None
        assert (b"was deleted" in follower.stderr.read()) == is_deleted


def test_a_report_counts_the_files_and_blocks_of_each_directory(tree: Run) -> None:
    shown = tree("files", "report", "--json")
    assert document(shown) == [
        {"directory": "/logs", "files": 2, "length_bytes": 16, "blocks": 2},
        {"directory": "/logs/day", "files": 1, "length_bytes": 8, "blocks": 1},
    ]
    assert tree("files", "report", "/logs").stdout.splitlines()[-1].split()[-2:] == ["in", "all"]
    assert "1.00" in tree("files", "report").stdout


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


def test_fsck_names_what_is_wrong_and_changes_nothing(run: Run, settings: Settings, local: Path) -> None:
    assert local
    run("files", "append", "source", "/logs/a.log")
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
