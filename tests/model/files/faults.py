"""Faults of volumes and of processes, possible at any moment.

A pause needs no move: the search may leave a process out for any time. A call without an answer is one of the
results of the call itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.files.rules import FIRST_STAMP, Role, Rule, World, closed_at_first
from tests.model.files.state import ABSENT, IDLE, Process, Replica, State, Step, Store, put

Move = tuple[str, Store, Process]


def accidents(world: World, state: State) -> Iterator[tuple[str, Store]]:
    """Restart a volume, damage it, take it out of reach, or bring it back."""
    store = state.store
    for volume, replica in enumerate(store.replicas):
        if not replica.is_up:
            yield f"volume {volume} returns", put(store, volume, replica._replace(is_up=True))
            continue
        if store.faults.absences:
            fewer = store._replace(faults=store.faults._replace(absences=store.faults.absences - 1))
            yield f"volume {volume} goes out of reach", put(fewer, volume, replica._replace(is_up=False))
        if not replica.exists:
            continue
        if store.faults.restarts:
            yield from _restarts(store, volume, replica)
        if store.faults.damages:
            yield from _damages(world, store, volume, replica)
        if store.faults.rollbacks and replica.persisted > FIRST_STAMP:
            fewer = store._replace(faults=store.faults._replace(rollbacks=store.faults.rollbacks - 1))
            yield (
                f"volume {volume} is an old copy",
                put(fewer, volume, closed_at_first(world, is_damaged=True)),
            )


def _restarts(store: Store, volume: int, replica: Replica) -> Iterator[tuple[str, Store]]:
    fewer = store._replace(faults=store.faults._replace(restarts=store.faults.restarts - 1))
    for length in range(replica.durable, len(replica.data) + 1):
        after = replica._replace(stamp=replica.persisted, data=replica.data[:length], durable=length)
        if after != replica:
            yield f"volume {volume} restarts, with {length} bytes", put(fewer, volume, after)


def _damages(world: World, store: Store, volume: int, replica: Replica) -> Iterator[tuple[str, Store]]:
    fewer = store._replace(faults=store.faults._replace(damages=store.faults.damages - 1))
    yield f"volume {volume} loses its replica", put(fewer, volume, ABSENT._replace(is_damaged=True))
    for length in range(replica.durable):
        after = replica._replace(data=replica.data[:length], durable=length, is_damaged=True)
        # Bytes that were given or acknowledged are missed; others are cut off without a trace.
        is_missed = replica.acknowledged > length and world.follows(Rule.ACKNOWLEDGED)
        is_missed = is_missed or (replica.given > length and world.follows(Rule.GIVEN))
        hides = length >= max(replica.acknowledged, replica.given)
        cut = after._replace(shows=is_missed, hides=hides)
        yield f"volume {volume} is cut to {length} bytes", put(fewer, volume, cut)
        shown = after._replace(shows=True, acknowledged=0)
        yield f"volume {volume} shows damage at {length}", put(fewer, volume, shown)


def crashes(world: World, state: State) -> Iterator[tuple[int, State]]:
    """Kill a process that begins again: it loses its memory."""
    for index, process in enumerate(state.processes):
        if world.roles[index] is Role.RECOVERER and process.step not in {Step.IDLE, Step.GONE}:
            processes = (*state.processes[:index], IDLE, *state.processes[index + 1 :])
            yield index, State(state.store, processes)


def with_lost_calls(before: Store, after: Store) -> Iterator[tuple[str, Store]]:
    """Yield the stores after a call that failed for its caller, without and with its effect."""
    if not before.faults.lost:
        return
    faults = before.faults._replace(lost=before.faults.lost - 1)
    yield "the call does not arrive", before._replace(faults=faults)
    if after != before:
        yield "the answer is lost", after._replace(faults=faults)
