"""Start the demo's child processes, and end them with the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

GRACE_S: Final = 15.0
_POLL_S: Final = 0.05


@contextmanager
def started(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process during the block, and then end it and all processes of its session.

    Args:
        arguments: Command and its arguments.
        log: File for its output.
        environment: Additional environment.
    """
    with ExitStack() as children:
        output = children.enter_context(log.open("wb"))
        with _signals_held():
            process = children.enter_context(
                subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
            )
            children.enter_context(ended(process))
        yield process


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


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait for the end of the block: raised within `Popen`, they lose its process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread
        return
    held: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for caught in held:
            signal.raise_signal(caught)


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
