"""What happens to processes and to the store, at any moment.

- A pause needs no move of its own: any process may be passed over for as long as one likes; a crash of one
  that does not begin again is a pause without an end.
- A lost answer is one of the results of the call itself.
- An accident of the store happens in the moment before the call that notices it: nobody can tell it from one
  that happened earlier.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.commit.rules import World
from tests.model.commit.state import IDLE, File, Job, State, Step, Store, put_file


def crashes(world: World, state: State) -> Iterator[tuple[str, int, State]]:
    """Kill a process that begins again: it forgets all."""
    store, processes = state
    for index, process in enumerate(processes):
        if world.roles[index].recovers and process.step is not Step.IDLE:
            yield "crashes", index, State(store, (*processes[:index], IDLE, *processes[index + 1 :]))


def lose_upload(store: Store, job: Job, index: int) -> Store:
    """Lose an open upload for good, as by a lifecycle rule or another tool."""
    return put_file(store, job, index, File.GONE)


def overwrite_old(store: Store) -> Store:
    """Let a stranger overwrite the old file: another version stands then."""
    return store._replace(old=2)
