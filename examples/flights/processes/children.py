"""End the demo's child processes with the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GRACE_S: Final = 15.0


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process and all processes of its session when the block ends."""
    try:
        yield
    finally:
        _signal(process, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
