"""End the demo's child processes with the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psutil

GRACE_S: Final = 15.0
_POLL_S: Final = 0.05


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process and all processes of its session when the block ends.

    The process must lead its session (`start_new_session=True`). Its children can outlive it: each is
    waited for.
    """
    try:
        yield
    finally:
        _end(process, signal.SIGTERM)
        _end(process, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal each process of the session once, and wait until all have ended or the patience is over."""
    signalled: set[int] = set()
    until_s = time.monotonic() + GRACE_S
    while members := _members(process.pid):
        for pid in members - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        signalled |= members
        if time.monotonic() > until_s:
            return
        time.sleep(_POLL_S)


def _members(session: int) -> set[int]:
    """Return the ids of a session's processes that still run; a zombie has ended."""
    found = set()
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found
