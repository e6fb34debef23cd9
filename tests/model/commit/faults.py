"""Faults of processes and of the store, possible at any moment.

- A pause needs no move of its own: the search may leave out any process for any time; a crash of a process
  that does not restart is an endless pause.
- A lost response is one of the results of the call itself.
- An accident of the store happens just before the call that notices it: it cannot be distinguished from one
  that happened earlier.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.commit.rules import World
from tests.model.commit.state import IDLE, File, Job, State, Step, Store, put_file


def crashes(world: World, state: State) -> Iterator[tuple[str, int, State]]:
    """Kill a process that restarts: it loses its memory."""
    store, processes = state
    for index, process in enumerate(processes):
        if world.roles[index].recovers and process.step is not Step.IDLE:
            yield "crashes", index, State(store, (*processes[:index], IDLE, *processes[index + 1 :]))


def lose_upload(store: Store, job: Job, index: int) -> Store:
    """Lose an open upload permanently, as by a lifecycle rule or another tool."""
    return put_file(store, job, index, File.GONE)


def overwrite_old(store: Store) -> Store:
    """Overwrite the old file as an unrelated program: it then has another version."""
    return store._replace(old=2)
