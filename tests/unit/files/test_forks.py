"""A fork of a process that writes files: it harms none of them, and writes files of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Final

import pytest

from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import load_settings

LIMITS: Final = {"commit_window_s": 0.5, "lease_renew_s": 0.2, "lease_soft_s": 1, "lease_hard_s": 1}
BEGIN: Final = f"""
import os, socket, sys
from pathlib import Path
from lockgate import FencedError, load_settings, open_files

def wait_for(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

to_child, to_parent = socket.socketpair()
with open_files(load_settings(home=Path(sys.argv[1]), **{LIMITS})) as files:
    with files.create("/a.log") as log:
        log.write(b"before\\n")
        log.flush()
        log.write(b"kept\\n")
        child = os.fork()
"""
PARENT_GOES_ON: Final = """
wait_for(child)
log.write(b"after\\n")
log.flush()
"""


def command(home: Path, *cases: str) -> list[str]:
    """Return a process that forks while it has bytes that are not flushed."""
    inner = "\n".join(indent(dedent(case), " " * 8) for case in cases)
    return [sys.executable, "-c", BEGIN + inner, str(home)]


def run(home: Path, *cases: str) -> str:
    """Run such a process, and return what it printed."""
    done = subprocess.run(command(home, *cases), check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(home: Path, path: str = "/a.log") -> bytes:
    with open_files(load_settings(home=home)) as files, files.open(path) as reader:
        return reader.read()


def test_a_fork_that_leaves_the_block_of_a_writer_closes_nothing_of_its_parent(tmp_path: Path) -> None:
    run(tmp_path, "if child == 0: sys.exit(0)", PARENT_GOES_ON)
    assert read(tmp_path) == b"before\nkept\nafter\n"


@pytest.mark.parametrize("call", ["log.write(b'c')", "log.flush()"])
def test_a_fork_uses_no_writer_of_its_parent(tmp_path: Path, call: str) -> None:
    case = f"""
        if child == 0:
            try:
                {call}
            except FencedError as error:
                print(error, flush=True)
            sys.exit(0)
    """
    assert "write in that process, or a file of your own" in run(tmp_path, case, PARENT_GOES_ON)
    assert read(tmp_path) == b"before\nkept\nafter\n"


def test_a_fork_writes_files_of_its_own_in_the_volume_of_its_parent(tmp_path: Path) -> None:
    case = """
        with files.create("/parent.log" if child else "/child.log") as own:
            for number in range(9):
                own.write(b"%d" % number)
                own.flush()
        if child == 0:
            sys.exit(0)
    """
    run(tmp_path, case, PARENT_GOES_ON)
    assert read(tmp_path, "/child.log") == read(tmp_path, "/parent.log") == b"012345678"
    assert read(tmp_path) == b"before\nkept\nafter\n"
    assert len(list((tmp_path / "volume" / "blocks").iterdir())) == 3


def test_a_fork_follows_the_file_that_its_parent_writes(tmp_path: Path) -> None:
    case = """
        if child == 0:
            reader = files.open("/a.log")
            assert reader.read() == b"before\\n"
            to_parent.send(b".")
            to_parent.recv(1)
            print(reader.read())
            sys.exit(0)
        to_child.recv(1)
        log.write(b"after\\n")
        log.flush()
        to_child.send(b".")
        wait_for(child)
    """
    assert run(tmp_path, case) == "b'kept\\nafter\\n'\n"
