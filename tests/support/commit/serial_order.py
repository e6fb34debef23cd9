"""The results of serial jobs, to which concurrent jobs are compared."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from lockgate.storage_core.commit.destination.conflict_mode import partition_of
from tests.support.processes.drivers import JobOrder

State = frozenset[tuple[str, bytes]]
"""What a destination holds: paths without short ids, and contents."""

EMPTY: State = frozenset()


def after(state: State, order: JobOrder) -> State | None:
    """Return the state after a job's commit; None if the job would be refused."""
    reached = _reached(state, order)
    if order.mode == "fail" and reached:
        return None
    kept = state - reached if order.mode == "replace" else state
    return kept | frozenset(order.files.items())


def serial_results(orders: Iterable[JobOrder]) -> set[State]:
    """Return every state that these jobs can leave if each commits once, in any order."""
    jobs = list(orders)

    @cache
    def results(chosen: frozenset[int]) -> frozenset[State]:
        if not chosen:
            return frozenset({EMPTY})
        ends = (after(before, jobs[last]) for last in chosen for before in results(chosen - {last}))
        return frozenset(end for end in ends if end is not None)

    return set(results(frozenset(range(len(jobs)))))


def _reached(state: State, order: JobOrder) -> State:
    if order.scope == "destination":
        return state
    receiving = {partition_of(path) for path in order.files}
    return frozenset(entry for entry in state if partition_of(entry[0]) in receiving)
