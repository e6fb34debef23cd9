"""A process that keeps an embedded observer is killed again and again: its readers never see the past."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockgate.storage_core.journal import Stamp
from tests.observer_world import ObserverWorld, SteppingClock, asked, take

pytestmark = pytest.mark.fault


class RealClock(SteppingClock):
    """The machine's."""

    def now_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@contextmanager
def observing(world: ObserverWorld) -> Iterator[subprocess.Popen[bytes]]:
    """Run `lockgate journal observe`, and kill it at the end."""
    command = [sys.executable, "-c", "from lockgate.storage_core.cli.app import main; main()"]
    process = subprocess.Popen(
        [*command, "journal", "observe", "--to", str(world.file(0))],
        env={**os.environ, "LOCKGATE_JOURNAL_URL": world.url, "LOCKGATE_HOME": str(world.root)},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_tailer_that_is_killed_again_and_again_goes_on_where_it_was(tmp_path: Path) -> None:
    world = ObserverWorld(tmp_path, clock=RealClock())
    try:
        client = world.client(wait_ms=120_000)
        written = 0
        for _ in range(4):
            with observing(world) as process:
                while client.observers()[0].stamp is None:
                    assert process.poll() is None, "the observing process has ended"
                    time.sleep(0.02)
                for _ in range(20):
                    take(world.journal)
                    written += 1
                    assert client.read(asked) == ("observer-0", written)
                for _ in range(50):  # it is killed amid these
                    take(world.journal)
                    written += 1
            # Where nobody tails, there are no old answers, only answers of the primary.
            assert world.client(wait_ms=0).read(asked)[1] == written
        assert world.journal.seen == Stamp(1, written)
    finally:
        world.close()
