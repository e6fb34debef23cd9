"""Faults of volumes and of processes, possible at any moment.

A pause needs no move: the search may leave a process out for any time. A call without an answer is one of the
results of the call itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.files.rules import FIRST_STAMP, Role, World, closed_at_first
from tests.model.files.state import IDLE, Kind, Process, Replica, State, Step, Store, put

Move = tuple[str, Store, Process]


def accidents(world: World, state: State) -> Iterator[tuple[str, Store]]:
    """Restart a volume, take it out of reach, or bring it back."""
    store = state.store
    for volume, replica in enumerate(store.replicas):
        if not replica.is_up:
            yield f"volume {volume} returns", put(store, volume, replica._replace(is_up=True))
            continue
        if store.faults.absences:
            fewer = store._replace(faults=store.faults._replace(absences=store.faults.absences - 1))
            yield f"volume {volume} goes out of reach", put(fewer, volume, replica._replace(is_up=False))
        if store.faults.restarts and replica.exists:
            yield from _restarts(store, volume, replica)
        if store.faults.rollbacks and replica.persisted > FIRST_STAMP:
            fewer = store._replace(faults=store.faults._replace(rollbacks=store.faults.rollbacks - 1))
            yield (
                f"volume {volume} is an old copy",
                put(fewer, volume, closed_at_first(world, is_damaged=True)),
            )


def _restarts(store: Store, volume: int, replica: Replica) -> Iterator[tuple[str, Store]]:
    faults = store.faults._replace(restarts=store.faults.restarts - 1)
    kind = Kind.SUSPECT if replica.kind is Kind.WRITING else replica.kind
    is_sealed = replica.kind is Kind.SEALED  # a sealed replica that lost bytes is found by its checksum
    least = replica.durable if is_sealed or not faults.damages else 0
    for length in range(least, len(replica.data) + 1):
        is_damage = length < replica.durable
        after = replica._replace(
            stamp=replica.persisted, kind=kind, data=replica.data[:length], durable=length
        )
        if after == replica:
            continue
        after = after._replace(is_damaged=replica.is_damaged or is_damage)
        left = faults._replace(damages=faults.damages - 1) if is_damage else faults
        word = "damaged" if is_damage else "restarts"
        yield (
            f"volume {volume} {word}, with {length} bytes",
            put(store._replace(faults=left), volume, after),
        )


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
