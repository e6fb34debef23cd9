"""Measure ways in turns: A B A B, so that what the machine does besides meets all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil

from benchmarks.peers.results import Turn
from benchmarks.peers.server import cpu_s


def measured(work: Callable[[], object], server_pid: int | None) -> Turn:
    """Do some work in this process, its JVM and its Python workers, and return what it took."""
    os.sync()  # what an earlier turn left to be written is not this one's
    load = os.getloadavg()[0]
    before, server_before_s, began_s = _tree_cpu_s(), _cpu_s(server_pid), time.perf_counter()
    work()
    wall_s = time.perf_counter() - began_s
    # A process that has ended by now was idle: Spark ends a Python worker after a minute without work, and
    # its CPU time is lost, even to its parent.
    spent = [cpu_s - before.get(process, 0.0) for process, cpu_s in _tree_cpu_s().items()]
    return Turn(
        wall_s=wall_s,
        client_cpu_s=sum(spent),
        server_cpu_s=_cpu_s(server_pid) - server_before_s,
        load=load,
    )


def in_turns(
    ways: Mapping[str, Callable[[], Turn]], rounds: int, say: Callable[[str], None], *, warm_up: bool = True
) -> dict[str, list[Turn]]:
    """Measure each way once a round; a first round, which warms up, is not kept."""
    taken: dict[str, list[Turn]] = {key: [] for key in ways}
    for number in range(0 if warm_up else 1, rounds + 1):
        for key, way in ways.items():
            turn = way()
            say(f"{number}/{rounds} {key}: {turn.wall_s:.2f} s, CPU {turn.client_cpu_s:.2f} s")
            if number > 0:
                taken[key].append(turn)
    return taken


def _tree_cpu_s() -> dict[psutil.Process, float]:
    """Return the CPU seconds so far of this process and of all below it, without those of ended children."""
    here = psutil.Process()
    found: dict[psutil.Process, float] = {}
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            found[process] = sum(process.cpu_times()[:2])
    return found


def _cpu_s(pid: int | None) -> float:
    return cpu_s(pid) if pid is not None else 0.0
