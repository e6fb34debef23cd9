"""Measure ways in turns: A B A B, so that what the machine does besides meets all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import psutil

from benchmarks.peers.results import Turn
from benchmarks.peers.server import cpu_s


def measured(work: Callable[[], object], server_pid: int | None) -> Turn:
    """Do some work in this process, its JVM and its Python workers, and return what it took."""
    os.sync()  # what an earlier turn left to be written is not this one's
    load = os.getloadavg()[0]
    before_s, server_before_s, began_s = _tree_cpu_s(), _cpu_s(server_pid), time.perf_counter()
    work()
    wall_s = time.perf_counter() - began_s
    return Turn(
        wall_s=wall_s,
        client_cpu_s=_tree_cpu_s() - before_s,
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


def _tree_cpu_s() -> float:
    here = psutil.Process()
    return sum(_each_cpu_s([here, *here.children(recursive=True)]))


def _each_cpu_s(processes: Iterable[psutil.Process]) -> Iterable[float]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # its CPU time is now its parent's
            yield sum(process.cpu_times()[:4])


def _cpu_s(pid: int | None) -> float:
    return cpu_s(pid) if pid is not None else 0.0
