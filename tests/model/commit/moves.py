"""The table of steps, and the moves that lead out of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Final

from tests.model.commit import committing, forward
from tests.model.commit.committing import Move
from tests.model.commit.faults import crashes
from tests.model.commit.final_steps import is_final
from tests.model.commit.rules import Role, World
from tests.model.commit.state import GONE, IDLE, Process, State, Step, Store, canonical

STEPS: Final[Mapping[Step, Callable[[World, Store, Process], Iterator[Move]]]] = {
    Step.LOOK: committing.look,
    Step.READ_HOLDER: committing.read_holder,
    Step.PASS: committing.pass_turn,
    Step.CLAIM: committing.claim_turn,
    Step.PLAN: committing.plan,
    Step.PREFLIGHT: committing.preflight,
    Step.CHECK_TURN: committing.check_turn,
    Step.DECIDE: committing.decide,
    Step.FAIL: committing.fail,
    Step.STOP: committing.stop,
    Step.DECIDE_ABORT: committing.decide_abort,
    Step.ROLL: forward.roll,
    Step.COMPLETE: forward.complete,
    Step.RESOLVE: forward.resolve,
    Step.END_TURN: forward.end_turn,
    Step.REMOVE: forward.remove,
    Step.ABORT_UPLOAD: forward.abort_upload,
    Step.TAKE_BACK: forward.take_back,
    Step.DROP: forward.drop,
    Step.END: forward.end,
}
_AT_HOME: Final = frozenset({Step.IDLE, Step.GONE})


class Moves:
    """The moves of one world.

    The step of a process depends only on the store and on its own memory, never on other processes, so it is
    computed once for each pair and cached.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._alike = tuple(len(tuple(group)) for _, group in groupby(world.roles))
        # Processes of one role share the cache.
        known: dict[Role, dict[Store, dict[Process, tuple[Move, ...]]]] = {role: {} for role in world.roles}
        after: dict[Role, dict[Store, dict[Process, Process]]] = {role: {} for role in world.roles}
        self._known = [known[role] for role in world.roles]
        self._after_final = [after[role] for role in world.roles]

    def out_of(self, state: State) -> Iterator[tuple[str, int, State]]:
        """Yield each possible event: its name, its process, and the resulting state."""
        store, processes = state
        for index, process in enumerate(processes):
            known = self._known[index].setdefault(store, {})
            if process not in known:
                known[process] = tuple(self._step(self._world.roles[index], store, process))
            for text, after, then in known[process]:
                yield text, index, State(after, (*processes[:index], then, *processes[index + 1 :]))
        yield from crashes(self._world, state)

    def standing_for(self, raw: State) -> State:
        """Return the representative of all equivalent states."""
        at_once = self._world.at_once and not self._world.dropped
        return canonical(self._take_final_steps(raw) if at_once else raw, self._alike)

    def _step(self, role: Role, store: Store, process: Process) -> Iterator[Move]:
        if process.step is Step.GONE:
            return
        if process.step is Step.IDLE:
            yield from committing.begin(self._world, role, store)
            return
        for text, after, then in STEPS[process.step](self._world, store, process):
            yield text, after, GONE if then is IDLE and not role.recovers else then

    def _take_final_steps(self, state: State) -> State:
        store, after = state.store, []
        for index, process in enumerate(state.processes):
            known = self._after_final[index].setdefault(store, {})
            if process not in known:
                known[process] = self._taken(self._world.roles[index], store, process)
            after.append(known[process])
        return State(store, tuple(after))

    def _taken(self, role: Role, store: Store, process: Process) -> Process:
        while process.step not in _AT_HOME and is_final(store, process):
            _, _, process = next(self._step(role, store, process))
        return process
