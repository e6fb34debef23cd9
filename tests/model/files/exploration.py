"""Breadth-first search of every reachable state, so that the first violation has a shortest trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.model.files import resealing, writing
from tests.model.files.choice import choose
from tests.model.files.faults import Move, accidents, crashes
from tests.model.files.invariants import Invariant, broken_between, broken_in
from tests.model.files.rules import Role, World, initial
from tests.model.files.state import (
    GONE,
    IDLE,
    TAKER,
    Faults,
    Process,
    State,
    Step,
    Store,
    seen_of,
    volumes,
)

_STEPS: Final[Mapping[Step, Callable[[World, Store, Process], Iterator[Move]]]] = {
    Step.CREATE: writing.create,
    Step.READY: writing.ready,
    Step.APPEND: writing.append,
    Step.FLUSH: writing.flush,
    Step.ACKNOWLEDGE: writing.acknowledge,
    Step.LOOK: resealing.look,
    Step.FENCE: resealing.fence,
    Step.FIT: resealing.fit,
    Step.FINISH: resealing.finish,
    Step.COMMIT: resealing.commit,
}
RECOVERY_STEPS: Final = 30
"""More than a recovery of three members needs."""
_OF_VOLUMES: Final = -1


@dataclass(frozen=True)
class Violation:
    """A violated invariant and a shortest trace to it."""

    invariant: Invariant
    trace: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line per step."""
        lines = (f"  {number:2}. {step}" for number, step in enumerate(self.trace, start=1))
        return "\n".join((*lines, f"   => broken: {self.invariant}"))


@dataclass
class Exploration:
    """The result of a search.

    Attributes:
        states: Number of states.
        moves: Number of moves between them.
        depth: Depth of the state farthest from the initial state.
        stores: The distinct stores, and the invariants that each breaks now or after a recovery.
    """

    world: World
    watched: frozenset[Invariant]
    states: int = 1
    moves: int = 0
    depth: int = 0
    violation: Violation | None = None
    stores: dict[Store, frozenset[Invariant]] = field(default_factory=dict)

    def check(self, before: State, after: State, index: int) -> Invariant | None:
        """Return the first watched invariant that a new state or the move to it violates."""
        store = after.store
        known = self.stores.get(store)
        if known is None:
            known = frozenset((*broken_in(self.world, store), *broken_after_recovery(self.world, store)))
            self.stores[store] = known
        broken = set(known)
        if index != _OF_VOLUMES:
            broken.update(broken_between(before, after, index))
        return next((one for one in Invariant if one in broken & self.watched), None)

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.world}: {self.states:,} states, {self.moves:,} moves, "
            f"{len(self.stores):,} stores recovered from, at most {self.depth} steps deep"
        )


def explore(world: World, watched: Collection[Invariant] = tuple(Invariant)) -> Exploration:
    """Visit every reachable state, or stop at the first violation.

    Args:
        world: Configuration to explore.
        watched: Invariants to check; all by default.
    """
    found = Exploration(world, frozenset(watched))
    first = initial(world)
    parents: dict[State, tuple[State, str] | None] = {first: None}
    waiting, following = [first], list[State]()
    while waiting:
        for state in waiting:
            for text, index, after in moves_out_of(world, state):
                found.moves += 1
                # A move is checked although its end is known: another move may lead there too.
                is_new = after not in parents
                if not is_new and (index == _OF_VOLUMES or state.processes[index].step not in _CHECKED):
                    continue
                if is_new:
                    parents[after] = (state, text)
                    following.append(after)
                broken = found.check(state, after, index)
                if broken is not None:
                    trace = (*_trace(parents, state), text)
                    found.violation = Violation(broken, trace)
                    return found
        found.states = len(parents)
        found.depth += bool(following)
        waiting, following = following, []
    return found


_CHECKED: Final = frozenset({Step.APPEND, Step.COMMIT})


def moves_out_of(world: World, state: State) -> Iterator[tuple[str, int, State]]:
    """Yield each possible event: its name, its process, and the resulting state."""
    store, processes = state
    for index, process in enumerate(processes):
        for text, after, then in _moves_of(world, store, index, process):
            if after.block.clock > world.stamps:
                continue
            is_taken = after.block.holder == TAKER
            held = after._replace(block=after.block._replace(holder=index)) if is_taken else after
            changed = State(held, (*processes[:index], then, *processes[index + 1 :]))
            yield f"P{index + 1} ({world.roles[index]}) {text}", index, changed
    for text, after in accidents(world, state):
        yield text, _OF_VOLUMES, State(after, processes)
    for index, after_crash in crashes(world, state):
        yield f"P{index + 1} ({world.roles[index]}) crashes", index, after_crash


def _moves_of(world: World, store: Store, index: int, process: Process) -> Iterator[Move]:
    if process.step is Step.GONE:
        return
    if process.step is Step.IDLE:
        yield from resealing.begin(world, world.roles[index], store)
    elif process.step is Step.STAMP:
        yield from writing.repair(world, store, process, index)
    else:
        for text, after, then in _STEPS[process.step](world, store, process):
            is_end = then is IDLE and world.roles[index] is not Role.RECOVERER
            yield text, after, GONE if is_end else then


def broken_after_recovery(world: World, store: Store) -> Iterator[Invariant]:
    """Recover the block without faults, with all volumes in reach and all other processes stopped.

    The first result that a step yields is the one without a fault.
    """
    up = store._replace(
        replicas=tuple(replica._replace(is_up=True) for replica in store.replicas), faults=Faults()
    )
    if up.block.is_closed and not up.block.pending:
        return
    _, up, process = next(resealing.begin(world, Role.RECOVERER, up))
    for _ in range(RECOVERY_STEPS):
        if process.step is Step.IDLE:
            break
        before = up
        done = process
        _, up, process = next(_STEPS[process.step](world, up, process))
        if done.step is Step.COMMIT and up.block is not before.block:
            yield from broken_in(world, up)
            return
    answers = {
        volume: seen_of(store.replicas[volume])
        for volume in volumes(store.block.members)
        if store.replicas[volume].exists
    }
    if choose(world, store.block, answers, store.block.target) is not None:
        yield Invariant.ENDS


def _trace(parents: Mapping[State, tuple[State, str] | None], last: State) -> tuple[str, ...]:
    found: list[str] = []
    entry = parents[last]
    while entry is not None:
        found.append(entry[1])
        entry = parents[entry[0]]
    return tuple(reversed(found))
