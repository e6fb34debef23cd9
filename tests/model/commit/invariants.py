"""Invariants of every state, every move, states at rest, and states after a fault-free recovery."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from lockgate.storage_core.commit.records.phase import NEXT, TERMINAL, JobPhase
from tests.model.commit.committing import live
from tests.model.commit.phases import readable_phase
from tests.model.commit.rules import World
from tests.model.commit.state import GONE, IDLE, Decision, End, File, Job, State, Store


class Invariant(StrEnum):
    """One invariant of the protocol."""

    ONE_MARKER = "never both terminal markers"
    TRUE_MARKER = "a terminal marker says what decision and outcome say"
    PUBLISHED_STAYS = (
        "published: every file of the plan is there, and stays until a later publication took it"
    )
    NOTHING_LEFT = "reverted or aborted: none of its files or uploads is there in the end"
    OLD_UNTIL_NEW = "a replaced file goes only after published, and only in the planned version"
    SERIAL = "the live files are those of the published jobs, one after the other in the order of their turns"
    NEXT_PHASE = "phases move along the code's table only"
    ENDS = "from every state, one recovery without faults brings both jobs to their end"
    REPLACED_GOES = "committed: in the end, what its plan replaces is gone unless it was changed"
    NO_NEEDLESS_FAILURE = "in calm, no job fails"


def published(store: Store) -> dict[Job, tuple[int, Decision]]:
    """Return the turn and the plan of each published job."""
    return {
        turn.outcome.job: (number, turn.outcome.plan)
        for number, turn in enumerate(store.turns, start=1)
        if turn.outcome.end is End.PUBLISHED
    }


def broken_in(world: World, store: Store) -> Iterator[Invariant]:
    """Yield the invariants that a store violates, regardless of the processes."""
    shown = published(store)
    for job, folder in zip(Job, store.folders, strict=True):
        found = readable_phase(store, job)
        if folder.success and folder.failure:
            yield Invariant.ONE_MARKER
        if found is None or (folder.success and job not in shown) or (folder.failure and job in shown):
            yield Invariant.TRUE_MARKER
        if job in shown and not _stands(store, shown, job):
            yield Invariant.PUBLISHED_STAYS
        if world.calm and found in FAILING:
            yield Invariant.NO_NEEDLESS_FAILURE
    if store.old < 0 and (Job.REPLACE not in shown or shown[Job.REPLACE][1].takes_old != -store.old):
        yield Invariant.OLD_UNTIL_NEW
    if live(store) != _one_after_the_other(store):
        yield Invariant.SERIAL


FAILING: Final = frozenset({JobPhase.REVERTING, JobPhase.ABORTING, JobPhase.FAILED})


def is_at_rest(state: State) -> bool:
    """Return whether both jobs have ended and no process is working."""
    at_work = set(state.processes) - {IDLE, GONE}
    return not at_work and all(readable_phase(state.store, job) in TERMINAL for job in Job)


def _stands(store: Store, shown: dict[Job, tuple[int, Decision]], job: Job) -> bool:
    if set(store.folders[job].files) == {File.VISIBLE}:
        return True
    turn, plan = shown.get(job.other, (0, None))
    return plan is not None and plan.takes_other and turn > shown[job][0]


def _one_after_the_other(store: Store) -> frozenset[Job]:
    """Apply the published jobs serially, in the order of their turns."""
    found: frozenset[Job] = frozenset()
    for turn in store.turns:
        if turn.outcome.end is End.PUBLISHED:
            found = frozenset({turn.outcome.job}) | (
                frozenset() if turn.outcome.job is Job.REPLACE else found
            )
    return found


def broken_at_rest(store: Store) -> Iterator[Invariant]:
    """Yield the invariants that a state at rest violates."""
    shown = published(store)
    for job, folder in zip(Job, store.folders, strict=True):
        if folder.failure and set(folder.files) != {File.GONE}:
            yield Invariant.NOTHING_LEFT
        if job in shown:
            _, plan = shown[job]
            other_stands = plan.takes_other and set(store.folders[job.other].files) != {File.GONE}
            old_stands = plan.takes_old and plan.takes_old == store.old
            if other_stands or old_stands:
                yield Invariant.REPLACED_GOES


def broken_between(before: Store, after: Store) -> Iterator[Invariant]:
    """Yield the invariants that a move violates."""
    for job in Job:
        old, new = readable_phase(before, job), readable_phase(after, job)
        if old is not None and new is not None and new is not old and new not in NEXT[old]:
            yield Invariant.NEXT_PHASE
