"""The search: every reachable state, nearest first, so that the first violation has a shortest trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from storage_core.commit.phase import TERMINAL, JobPhase
from tests.model import committing, forward
from tests.model.committing import Move
from tests.model.faults import crashes
from tests.model.invariants import Invariant, broken_at_rest, broken_between, broken_in, is_over
from tests.model.phases import readable_phase
from tests.model.rules import Role, World
from tests.model.settled import is_settled
from tests.model.state import GONE, IDLE, Job, Process, State, Step, Store, canonical, initial

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
    Step.SETTLE: forward.settle,
    Step.END_TURN: forward.end_turn,
    Step.REMOVE: forward.remove,
    Step.ABORT_UPLOAD: forward.abort_upload,
    Step.TAKE_BACK: forward.take_back,
    Step.DROP: forward.drop,
    Step.END: forward.end,
}

_AT_HOME: Final = frozenset({Step.IDLE, Step.GONE})
RECOVERY_STEPS: Final = 60
"""More than any job needs from its decision to its end."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken, and the shortest way there."""

    invariant: Invariant
    trace: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line a step."""
        lines = (f"  {number:2}. {step}" for number, step in enumerate(self.trace, start=1))
        return "\n".join((*lines, f"   => broken: {self.invariant}"))


@dataclass
class Exploration:
    """What a search found.

    Attributes:
        states: How many there are, up to the order of like processes and turns that nobody looks at.
        moves: Between them.
        at_rest: In how many both jobs have ended and nobody is at work.
        depth: Of the state that is farthest from the beginning.
        recovered: The stores from which a recovery without faults was run, and what it broke.
    """

    world: World
    watched: frozenset[Invariant]
    states: int = 1
    moves: int = 0
    at_rest: int = 0
    depth: int = 0
    violation: Violation | None = None
    recovered: dict[Store, frozenset[Invariant]] = field(default_factory=dict)

    def check(self, before: State, after: State, raw: State) -> Invariant | None:
        """Return the first watched promise that a new state breaks, by itself, on the way, or in the end."""
        store = after.store
        if store not in self.recovered:
            self.recovered[store] = frozenset(broken_after_recovery(self.world, store))
        self.at_rest += set(after.processes) <= {IDLE, GONE} and is_over(store)
        broken = {
            *broken_in(self.world, after),
            *broken_between(before.store, raw.store),
            *self.recovered[store],
        }
        return next((promise for promise in Invariant if promise in broken & self.watched), None)

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.world}: {self.states:,} states, {self.moves:,} moves, {len(self.recovered):,} stores "
            f"recovered from, {self.at_rest:,} states at rest, at most {self.depth} steps deep"
        )


def explore(world: World, watched: Collection[Invariant] = tuple(Invariant)) -> Exploration:
    """Visit every reachable state, or stop at the first that breaks a promise.

    Args:
        world: What is possible.
        watched: The promises that count; all by default.
    """
    found = Exploration(world, frozenset(watched))
    alike = tuple(len(tuple(group)) for _, group in groupby(world.roles))
    first = initial(len(world.roles), world.files)
    parents: dict[State, State | None] = {first: None}
    waiting, following = [first], list[State]()
    while waiting:
        for state in waiting:
            for _, _, raw in moves(world, state):
                found.moves += 1
                after = canonical(_settle_all(world, raw), alike)
                if after in parents:
                    continue
                parents[after] = state
                broken = found.check(state, after, raw)
                if broken is not None:
                    trace = retell(world, alike, _path(parents, after))
                    found.violation = Violation(broken, tuple(trace))
                    return found
                following.append(after)
        found.states = len(parents)
        found.depth += bool(following)
        waiting, following = following, []
    return found


def moves(world: World, state: State) -> Iterator[tuple[str, int, State]]:
    """Yield what may happen next: what, to which process, and what comes of it."""
    store, processes = state
    for index, process in enumerate(processes):
        role = world.roles[index]
        for text, after, then in _steps(world, role, store, process):
            following = GONE if then is IDLE and not role.recovers else then
            yield text, index, State(after, (*processes[:index], following, *processes[index + 1 :]))
    yield from crashes(world, state)


def _steps(world: World, role: Role, store: Store, process: Process) -> Iterator[Move]:
    if process.step is Step.IDLE:
        return committing.begin(world, role, store)
    if process.step is Step.GONE:
        return iter(())
    return STEPS[process.step](world, store, process)


def _settle_all(world: World, state: State) -> State:
    """Let every process take its steps that are settled; where a rule is dropped none is."""
    if world.dropped:
        return state
    store = state.store
    return State(
        store,
        tuple(_settle(world, role, store, p) for role, p in zip(world.roles, state.processes, strict=True)),
    )


def _settle(world: World, role: Role, store: Store, process: Process) -> Process:
    while process.step not in _AT_HOME and is_settled(store, process):
        _, _, process = next(STEPS[process.step](world, store, process))
        if process is IDLE and not role.recovers:
            return GONE
    return process


def broken_after_recovery(world: World, store: Store) -> Iterator[Invariant]:
    """Recover both jobs as a scheduled recovery does, without a fault, everyone else being gone or paused.

    The first of the results that a step yields is the one without a fault.
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


def retell(world: World, alike: tuple[int, ...], path: list[State]) -> Iterator[str]:
    """Tell a path with processes and turns that keep their names, which canonical states do not have."""
    raw = initial(len(world.roles), world.files)
    for goal in path[1:]:
        text, index, after = next(
            move for move in moves(world, raw) if canonical(_settle_all(world, move[2]), alike) == goal
        )
        yield f"{_named(raw, after, index)} {text}"
        raw = after


def _named(before: State, after: State, index: int) -> str:
    process = before.processes[index]
    if process.step is Step.IDLE:
        process = after.processes[index]
    helping = f" for {process.subject.name}" if process.subject != process.own else ""
    return f"P{index + 1} ({process.own.name}{helping})"
