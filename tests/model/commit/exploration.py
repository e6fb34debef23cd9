"""Breadth-first search of every reachable state, so that the first violation has a shortest trace."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from tests.model.commit import committing
from tests.model.commit.invariants import Invariant, broken_at_rest, broken_between, broken_in, is_at_rest
from tests.model.commit.moves import STEPS, Moves
from tests.model.commit.phases import readable_phase
from tests.model.commit.rules import World
from tests.model.commit.state import IDLE, Job, Process, State, Step, Store, initial

RECOVERY_STEPS: Final = 60
"""More than any job needs from its decision to its end."""


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
        states: Number of states, up to the order of equal processes and turns that are never read.
        moves: Number of moves between them.
        depth: Depth of the state farthest from the initial state.
        stores: The distinct stores, and the invariants that each breaks now or after fault-free recovery.
        ends: States in which both jobs have ended and no process is working.
    """

    world: World
    watched: frozenset[Invariant]
    states: int = 1
    moves: int = 0
    depth: int = 0
    violation: Violation | None = None
    stores: dict[Store, frozenset[Invariant]] = field(default_factory=dict)
    ends: set[Store] = field(default_factory=set)

    def check(self, before: State, after: State, raw: State) -> Invariant | None:
        """Return the first watched invariant that a new state, the move to it, or its end violates."""
        store = after.store
        if store not in self.stores:
            recovered = broken_after_recovery(self.world, store)
            self.stores[store] = frozenset((*broken_in(self.world, store), *recovered))
        broken = set(self.stores[store])
        if raw.store != before.store:
            broken.update(broken_between(before.store, raw.store))
        if is_at_rest(after):
            self.ends.add(store)
            broken.update(broken_at_rest(store))
        return next((promise for promise in Invariant if promise in broken & self.watched), None)

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.world}: {self.states:,} states, {self.moves:,} moves, {len(self.stores):,} stores "
            f"recovered from, {len(self.ends):,} ends, at most {self.depth} steps deep"
        )


def explore(world: World, watched: Collection[Invariant] = tuple(Invariant)) -> Exploration:
    """Visit every reachable state, or stop at the first violation.

    Args:
        world: Configuration to explore.
        watched: Invariants to check; all by default.
    """
    found = Exploration(world, frozenset(watched))
    moves = Moves(world)
    first = initial(len(world.roles), world.files)
    parents: dict[State, State | None] = {first: None}
    waiting, following = [first], list[State]()
    while waiting:
        for state in waiting:
            for _, _, raw in moves.out_of(state):
                found.moves += 1
                after = moves.standing_for(raw)
                if after in parents:
                    continue
                parents[after] = state
                broken = found.check(state, after, raw)
                if broken is not None:
                    found.violation = Violation(broken, tuple(retell(world, _path(parents, after))))
                    return found
                following.append(after)
        found.states = len(parents)
        found.depth += bool(following)
        waiting, following = following, []
    return found


def broken_after_recovery(world: World, store: Store) -> Iterator[Invariant]:
    """Recover both jobs without faults, like a scheduled recovery, while all other processes are stopped.

    The first result that a step yields is the one without a fault.
    """
    for job in Job:
        process = _recoverer(store, job)
        for _ in range(RECOVERY_STEPS):
            if process == IDLE:
                break
            _, store, process = next(STEPS[process.step](world, store, process))
        if readable_phase(store, job) not in TERMINAL:
            yield Invariant.ENDS
            return
    yield from broken_at_rest(store)


def _recoverer(store: Store, job: Job) -> Process:
    found = readable_phase(store, job)
    if found is None or found in TERMINAL:
        return IDLE
    return Process(Step.DECIDE_ABORT, job, job) if found is JobPhase.OPEN else committing.follow(job, job)


def _path(parents: Mapping[State, State | None], last: State) -> list[State]:
    path = [last]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def retell(world: World, path: list[State]) -> Iterator[str]:
    """Return a trace in which processes and turns keep their names, which canonical states lack."""
    moves, raw = Moves(world), initial(len(world.roles), world.files)
    for goal in path[1:]:
        text, index, after = next(move for move in moves.out_of(raw) if moves.standing_for(move[2]) == goal)
        yield f"{_named(raw, after, index)} {text}"
        raw = after


def _named(before: State, after: State, index: int) -> str:
    process = before.processes[index]
    if process.step is Step.IDLE:
        process = after.processes[index]
    helping = f" for {process.subject.name}" if process.subject != process.own else ""
    return f"P{index + 1} ({process.own.name}{helping})"
