#!/usr/bin/env python3
"""Run a command with servers for its tests or measurements, and leave nothing behind.

    python -m scripts.with_servers [--memory] [--s3] [--postgres] COMMAND [ARGUMENT ...]

    --memory    temporary files are kept in memory, if the machine has room for them
    --s3        a real S3 server, built with Go; without Go its tests are skipped with a reason
    --postgres  one PostgreSQL cluster that does not sync; without PostgreSQL its tests are skipped

At the end, also after Ctrl-C or SIGTERM, every process that the command started is ended, even one that has
left its group or its parent, and the temporary files are removed. Exit code: the command's, or 128 + the
signal.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

from scripts import s3_server
from tests.support.postgres import UNSYNCED, postgres_bin, primary

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - its folders have random names
ROOM_BYTES: Final = 2 * 1024**3
SPARE_BYTES: Final = 8 * 1024**3
"""Free memory that must remain for the processes of the tests."""

PR_SET_CHILD_SUBREAPER: Final = 36
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S: Final = {signal.SIGINT: 10.0, signal.SIGTERM: 5.0, signal.SIGKILL: 5.0}
"""Signals to a command that is stopped, in this order, and how long each may take."""


class Stopped(SystemExit):
    """A signal that stops the command has arrived."""


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """End every process that was started in the block, and turn signals that stop this one into `Stopped`.

    On Linux this process adopts the orphans of its children, so that none of them is lost.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    handlers = {number: signal.signal(number, _stop) for number in STOPPING}
    try:
        yield
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        _end_descendants()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(128 + number)


def _end_descendants() -> None:
    for number, grace_s in GRACE_S.items():
        deadline_s = time.monotonic() + grace_s
        for process in _descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        while _descendants() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        _reap()


def _descendants() -> list[psutil.Process]:
    """Return the processes below this one that still run."""
    _reap()
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@contextlib.contextmanager
def memory() -> Iterator[None]:
    """Keep temporary files in memory, if there is room: tests make a hundred thousand syncs."""
    has_room = (
        os.access(MEMORY, os.W_OK)
        and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
        and psutil.virtual_memory().available >= SPARE_BYTES
    )
    # A short name: the path of a socket below it may have at most 107 characters.
    root = tempfile.mkdtemp(prefix="", dir=MEMORY if has_room else None)
    Path(root).chmod(0o711)  # tests that act as another user pass through it
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = root
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        subprocess.run(["rm", "-rf", root], check=False)  # Python takes 20 s for so many files


@contextlib.contextmanager
def s3() -> Iterator[None]:
    """Start a real S3 server unless one runs. Without Go its tests are skipped."""
    was_running = s3_server.is_running()
    try:
        server = None if os.environ.get("LOCKGATE_TEST_S3_URL") else s3_server.start(s3_server.DATA)
    except s3_server.GoMissingError as error:
        s3_server.say(str(error))
        server = None
    if server is not None:
        os.environ.update(server.test_variables())
    try:
        yield
    finally:
        if server is not None and not was_running:
            s3_server.stop()


@contextlib.contextmanager
def postgres() -> Iterator[None]:
    """Start one PostgreSQL cluster for all tests. Without PostgreSQL its tests are skipped."""
    if postgres_bin() is None:
        yield
        return
    # On disk, because its databases take gigabytes; it does not sync.
    root = tempfile.mkdtemp(prefix="lockgate-postgres-", dir="/var/tmp")
    try:
        with primary(Path(root), **UNSYNCED, max_connections="300") as server:
            os.environ["LOCKGATE_TEST_POSTGRES"] = f"{root}:{server.port}"
            yield
    finally:
        subprocess.run(["rm", "-rf", root], check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with what was asked for, and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("memory", "s3", "postgres"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        if chosen.memory:
            stack.enter_context(memory())
        stack.enter_context(contained())
        if chosen.s3:
            stack.enter_context(s3())
        if chosen.postgres:
            stack.enter_context(postgres())
        # Not `run`, which kills its command at once when a signal arrives.
        return subprocess.Popen(chosen.command).wait()


if __name__ == "__main__":
    sys.exit(main())
