"""Temporary folders of Spark tasks do not accumulate when tasks are killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.operators.spark_process import process as answer_folder_module
from lockgate.operators.spark_process.process import LEAST_AGE_S, PREFIX, answer_folder
from lockgate.storage_core import file_locks
from lockgate.storage_core.errors import StoreUnavailableError

KILLED = """
import os, signal
from lockgate.operators.spark_process import process as answer_folder_module
from lockgate.operators.spark_process.process import answer_folder
with answer_folder() as folder:
    (folder / "answer.json").touch()
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def aged(path: Path) -> Path:
    """Make a folder older than one that is just being created."""
    then_s = path.stat().st_mtime - 2 * LEAST_AGE_S
    os.utime(path, (then_s, then_s))
    return path


def test_the_folder_of_a_killed_task_is_deleted_by_the_next_one(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    left = aged(Path(ended.stdout.strip()))
    assert (left / "answer.json").exists()
    with answer_folder() as own:
        assert not left.exists()
    assert not own.exists()


def test_folders_of_running_tasks_young_ones_and_those_of_others_are_kept(folder: Path) -> None:
    young = Path(tempfile.mkdtemp(prefix=PREFIX))
    other = aged(Path(tempfile.mkdtemp(prefix="spark-")))
    outside = aged(Path(tempfile.mkdtemp(prefix="outside-")))
    (folder / f"{PREFIX}link").symlink_to(outside)
    with answer_folder() as running:
        aged(running)
        with answer_folder() as own:
            assert {running, own, young, other, outside} == {
                path for path in folder.iterdir() if not path.is_symlink()
            }
    assert {young, other, outside} == {path for path in folder.iterdir() if not path.is_symlink()}


def test_a_folder_that_another_process_keeps_locked_is_an_error_after_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_locks, "WAIT_S", 0.0)
    made = answer_folder_module.tempfile.TemporaryDirectory

    def locked(prefix: str) -> tempfile.TemporaryDirectory[str]:
        folder = made(prefix=prefix)
        fcntl.flock(os.open(folder.name, os.O_RDONLY), fcntl.LOCK_EX)
        return folder

    monkeypatch.setattr(answer_folder_module.tempfile, "TemporaryDirectory", locked)
    with pytest.raises(StoreUnavailableError, match="without progress for 0 s"), answer_folder():
        pass
