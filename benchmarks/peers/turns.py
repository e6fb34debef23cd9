"""Measure ways in turns: A B A B, so that what the machine does besides meets all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import psutil

from benchmarks.peers.results import Turn
from benchmarks.peers.server import cpu_s


class _Cpu(NamedTuple):
    """CPU seconds of a process so far, and of its children that have ended."""

    own_s: float
    ended_s: float


_NOTHING: Final = _Cpu(0.0, 0.0)


def measured(work: Callable[[], object], server_pid: int | None) -> Turn:
    """Do some work in this process, its JVM and its Python workers, and return what it took."""
    os.sync()  # what an earlier turn left to be written is not this one's
    load = os.getloadavg()[0]
    before, server_before_s, began_s = _tree_cpu_s(), _cpu_s(server_pid), time.perf_counter()
    work()
    wall_s = time.perf_counter() - began_s
    after = _tree_cpu_s()
    own_s = sum(now.own_s - before.get(process, _NOTHING).own_s for process, now in after.items())
    # The system adds the time of an ended child's whole life to its parent's; what it used before this turn
    # is taken off. It adds nothing for Spark's Python workers, which end after a minute without work.
    ended_s = sum(now.ended_s - before.get(process, _NOTHING).ended_s for process, now in after.items())
    earlier_s = sum(was.own_s for process, was in before.items() if process not in after)
    return Turn(
        wall_s=wall_s,
        client_cpu_s=own_s + max(0.0, ended_s - earlier_s),
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


def _tree_cpu_s() -> dict[psutil.Process, _Cpu]:
    """Return the CPU seconds so far of this process and of all below it."""
    here = psutil.Process()
    found: dict[psutil.Process, _Cpu] = {}
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process] = _Cpu(sum(times[:2]), sum(times[2:4]))
    return found


def _cpu_s(pid: int | None) -> float:
    return cpu_s(pid) if pid is not None else 0.0
