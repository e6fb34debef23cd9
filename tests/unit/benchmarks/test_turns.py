"""The CPU time of a turn: that of all processes below this one, whenever they begin or end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.turns import measured

BURN_S = 0.4
BURN = f"""
import sys, time
while time.process_time() < {BURN_S}:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def burning() -> Iterator[subprocess.Popen[str]]:
    """Start a process that uses CPU time and then waits; yield it when it waits."""
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
            yield process
        finally:
            process.kill()


def test_a_process_that_ends_takes_its_earlier_cpu_time_from_nobody() -> None:
    with burning() as process:

        def end() -> None:
            process.kill()
            process.wait()

        assert 0 <= measured(end, None).client_cpu_s < BURN_S / 2


def test_the_cpu_time_of_a_process_that_begins_and_ends_is_counted() -> None:
    def run() -> None:
        with burning():
            pass

    assert measured(run, None).client_cpu_s > BURN_S / 2


def test_the_cpu_time_of_a_process_that_begins_is_counted() -> None:
    begun = burning()
    try:
        assert measured(begun.__enter__, None).client_cpu_s > BURN_S / 2
    finally:
        begun.__exit__(None, None, None)
