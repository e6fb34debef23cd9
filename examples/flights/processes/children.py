"""Child processes that do not outlive the demo, however it ends."""

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
    """End a process, and what it has started in its session, when the block is left."""
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
