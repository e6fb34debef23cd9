"""Compare two processes at one journal with the model under calls, deaths and time in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import event

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import (
    Journal,
    Leases,
    LeaseState,
    Mutation,
    Refused,
    Stamp,
    Written,
    open_journal,
)
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import Granted, Lease, Seen, TakeLease
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.write.head import (
    SafeReason,
    begin_epoch,
    drop_reason,
    enter_safe_mode,
    lock_head,
)
from tests.model.journal.model import Accepted, Answer, JournalModel, with_renewals_of_held
from tests.model.journal.replay import MemoryRows, replay
from tests.model.journal.requests import HARD_S, RESOURCES, SOFT_S, Wish, holders, resources, wishes
from tests.support.commit.destination import Crash, ManualClock
from tests.support.journal.lease_states import NEXT, lease_states

PROCESSES: Final = (0, 1)
processes = st.sampled_from(PROCESSES)
pauses = st.sampled_from((1.0, SOFT_S, HARD_S - SOFT_S, HARD_S))
BEGINS_S: Final = 1_000_000_000.0
"""A time long ago: mutations created by the journal itself have the machine's time and are never stale."""

T = TypeVar("T")
_numbers = count(1)


class JournalMachine(RuleBasedStateMachine):
    """Calls to one journal, and faults of the callers.

    Attributes:
        url: URL of a database; each example has its own journal in it.
        held: Stamp with which each holder last took each resource.
        requests: Every request, so that it can be repeated.
        stamps: Every stamp that was ever issued; none may be issued again.
        points: States from which entries are folded.
    """

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"journal-{next(_numbers)}"
        self.clock = ManualClock(BEGINS_S)
        self.journals = [self._open() for _ in PROCESSES]
        self.model = JournalModel()
        self.held: dict[tuple[str, str], Stamp] = {}
        self.requests: list[Mutation] = []
        self.stamps: set[Stamp] = set()
        self.points: list[MemoryRows] = [MemoryRows()]

    def teardown(self) -> None:
        FAILPOINTS.arm({})
        FAILPOINTS.observer = None
        try:
            self.folding_from_any_point_gives_the_tables()
        finally:
            for journal in self.journals:
                journal.close()

    # Calls

    @rule(process=processes, wish=wishes)
    def ask(self, process: int, wish: Wish) -> None:
        self._ask(process, [self._mutation(wish)])

    @rule(process=processes, several=st.lists(wishes, min_size=2, max_size=5))
    def ask_in_one_group(self, process: int, several: list[Wish]) -> None:
        self._ask(process, [self._mutation(wish) for wish in several])

    @precondition(lambda self: self.requests)
    @rule(process=processes, number=st.integers(0, 100), wish=wishes)
    def ask_again_beside_something_new(self, process: int, number: int, wish: Wish) -> None:
        again = self.requests[number % len(self.requests)]
        self._ask(process, [again, self._mutation(wish), again])

    @precondition(lambda self: self.requests)
    @rule(process=processes, number=st.integers(0, 100), wish=wishes)
    def ask_for_something_under_a_used_id(self, process: int, number: int, wish: Wish) -> None:
        used = self.requests[number % len(self.requests)].request_id
        self._ask(process, [msgspec.structs.replace(self._mutation(wish), request_id=used)])

    @rule(several=st.lists(st.tuples(processes, wishes, st.booleans()), min_size=2, max_size=4))
    def ask_at_once(self, several: list[tuple[int, Wish, bool]]) -> None:
        """Call from threads of both processes; some repeat the request of another under the same id."""
        mutations: list[Mutation] = []
        for _, wish, is_repeat in several:
            mutations.append(mutations[-1] if is_repeat and mutations else self._mutation(wish))
        answers = at_once(
            [
                lambda process=process, mutation=mutation: self._write(process, [mutation])  # type: ignore[misc]
                for (process, *_), mutation in zip(several, mutations, strict=True)
            ]
        )
        calls = [(m, answer) for m, (answer,) in zip(mutations, answers, strict=True)]
        assert self.model.explain(calls, self.clock.now) == []
        self._take_note(calls)

    # Faults of calls

    @rule(process=processes, wish=wishes)
    def ask_and_lose_the_answer(self, process: int, wish: Wish) -> None:
        mutation = self._mutation(wish)
        FAILPOINTS.arm({"idle.journal-write.after": "lost"})
        (answer,) = self._write(process, [mutation])
        FAILPOINTS.arm({})
        expected = self.model.ask(mutation, self.clock.now)
        if isinstance(expected, Accepted):
            expected = self.model.ask(mutation, self.clock.now)  # like the response to the repetition
        assert answer == expected
        self._take_note([(mutation, answer)])

    @rule(process=processes, wish=wishes)
    def die_before_the_transaction_is_durable(self, process: int, wish: Wish) -> None:
        journal = self.journals[process]
        seen = journal.seen
        event.listen(journal.database._engine, "commit", _die)
        self._die_in(process, self._mutation(wish))
        assert journal.seen == seen
        event.remove(journal.database._engine, "commit", _die)
        self._reopen(process)

    @rule(process=processes, wish=wishes)
    def die_before_the_answer_and_ask_again(self, process: int, wish: Wish) -> None:
        mutation = self._mutation(wish)
        FAILPOINTS.observer = _die_after_write
        self._die_in(process, mutation)
        FAILPOINTS.observer = None
        self._reopen(process)
        self.model.ask(mutation, self.clock.now)
        self._ask(process, [mutation])

    @rule(process=processes, holder=holders)
    def renew(self, process: int, holder: str) -> None:
        held = {
            resource: self.held[holder, resource] for resource in RESOURCES if (holder, resource) in self.held
        }
        lost = Leases(self.journals[process]).renew(holder, held)
        assert set(lost) == self.model.renew(holder, held, self.clock.now)

    @rule(process=processes, holder=holders, resource=resources, is_renewed=st.booleans())
    def recover_what_was_watched(self, process: int, holder: str, resource: str, is_renewed: bool) -> None:
        """A recovery that saw a lease unrenewed takes it, unless its holder has renewed it since."""
        view = Leases(self.journals[process]).look(resource)
        if view is None:
            return
        if is_renewed:
            self.renew(process, view.lease.holder)
        op = TakeLease(
            resource=resource,
            holder=holder,
            purpose="recover",
            soft_s=SOFT_S,
            hard_s=HARD_S,
            seen=Seen(view.lease.stamp, view.lease.renewed_s),
        )
        mutation = Mutation(op=op, asked_s=self.clock.now)
        self.requests.append(mutation)
        answers = self._write(process, [mutation])
        assert answers == [self.model.ask(mutation, self.clock.now)]
        self._take_note([(mutation, answers[0])])

    @rule(seconds=st.sampled_from((-3600.0, 3600.0)))
    def the_clock_jumps(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @rule(seconds=pauses)
    def time_passes(self, seconds: float) -> None:
        before = self.model.lease_states(self.clock.now)
        self.clock.sleep(seconds)
        for resource, state in self.model.lease_states(self.clock.now).items():
            assert state == before[resource] or _leads_to(before[resource], state)

    @rule(process=processes, holder=holders, resource=resources, seconds=pauses)
    def take_sleep_and_come_back(self, process: int, holder: str, resource: str, seconds: float) -> None:
        """A driver that wakes from a pause at any limit sees its lease as in the model."""
        op = TakeLease(resource=resource, holder=holder, purpose="take over", soft_s=SOFT_S, hard_s=HARD_S)
        self.ask(process, Wish(holder, op))
        self.time_passes(seconds)
        self.renew(process, holder)

    @rule(process=processes)
    def msync(self, process: int) -> None:
        assert self.journals[process].msync() == self.model.stamp
        assert self.journals[process].seen == self.model.stamp

    @rule(process=processes)
    def fail_over(self, process: int) -> None:
        """Promote a standby; no entry is lost here."""
        journal = self.journals[process]
        with journal.database.write() as connection:
            head = lock_head(connection, journal.database, journal.known)
            number = begin_epoch(
                connection, self.name, head.stamp, timeline=head.timeline, reason="test", now_s=head.now_s
            )
        self.model.begin_epoch(number)

    @rule(is_on=st.booleans())
    def enter_or_leave_safe_mode(self, is_on: bool) -> None:
        """Enter or leave safe mode like an operator."""
        journal = self.journals[0]
        with journal.database.write() as connection:
            if is_on:
                enter_safe_mode(connection, self.name, SafeReason.OPERATOR, "test", self.clock.now)
            else:
                for reason in SafeReason:
                    drop_reason(connection, self.name, reason)
        self.model.is_safe = is_on

    @rule()
    def note_a_point(self) -> None:
        """Remember a state from which a later fold also starts."""
        if self.points[-1].sequence >= self.model.pruned:
            self.points.append(replay(self.points[-1].copy(), self._entries(self.points[-1].sequence)))

    # Invariants

    @invariant()
    def the_tables_are_the_models(self) -> None:
        with self.journals[0].reading() as reading:
            tables = {kind.TABLE: table(reading.where(kind, {})) for kind in known_families().rows}
            stamp = reading.status().stamp
            sequences = [entry.sequence for entry in reading.entries(0, 1000)]
        assert with_renewals_of_held(tables) == with_renewals_of_held(self.model.tables)
        assert stamp == self.model.stamp
        assert sequences == list(range(self.model.pruned + 1, self.model.sequence + 1))

    @invariant()
    def leases_are_seen_as_the_model_sees_them(self) -> None:
        assert lease_states(self.journals[1]) == self.model.lease_states(self.clock.now)

    def folding_from_any_point_gives_the_tables(self) -> None:
        with self.journals[0].reading() as reading:
            now = {kind: table(reading.where(kind, {})) for kind in known_families().rows}
        for lease in now[Lease].values():
            del lease["renewed_s"], lease["dropped_s"]  # they are not set by any entry
        for point in (point for point in self.points if point.sequence >= self.model.pruned):
            assert replay(point, self._entries(point.sequence)).tables() == now

    # Implementation

    def _open(self) -> Journal:
        return open_journal(self.url, self.name, clock=self.clock)

    def _reopen(self, process: int) -> None:
        self.journals[process].close()
        self.journals[process] = self._open()

    def _mutation(self, wish: Wish) -> Mutation:
        mutation = Mutation(op=wish.with_stamp(self.held), asked_s=self.clock.now)
        self.requests.append(mutation)
        return mutation

    def _ask(self, process: int, mutations: Sequence[Mutation]) -> None:
        before = self.model.lease_states(self.clock.now)
        answers = self._write(process, mutations)
        assert answers == [self.model.ask(mutation, self.clock.now) for mutation in mutations]
        if len(mutations) == 1:
            for resource, state in self.model.lease_states(self.clock.now).items():
                assert state == before.get(resource, "free") or _follows(before.get(resource, "free"), state)
        self._take_note(list(zip(mutations, answers, strict=True)))

    def _write(self, process: int, mutations: Sequence[Mutation]) -> list[Answer]:
        journal = self.journals[process]
        seen = journal.seen
        outcomes = journal.write(mutations)
        answers = [answer(outcome) for outcome in outcomes]
        written = [a.stamp for a in answers if isinstance(a, Accepted)]
        assert journal.seen >= max([seen, *written])  # it never decreases and includes its own writes
        return answers

    def _die_in(self, process: int, mutation: Mutation) -> None:
        try:
            self.journals[process].write([mutation])
        except Crash:
            return
        raise AssertionError("no crash was raised")

    def _take_note(self, calls: Sequence[tuple[Mutation, Answer]]) -> None:
        new = [answer.stamp for _, answer in calls if isinstance(answer, Accepted) and not answer.is_repeat]
        assert self.stamps.isdisjoint(new)
        assert len(set(new)) == len(new)
        self.stamps.update(new)
        for mutation, answer in calls:
            if isinstance(answer, Accepted) and answer.result is not None:
                at = (mutation.op.holder, mutation.op.resource)  # type: ignore[attr-defined]  # a taken lease
                self.held[at] = max(self.held.get(at, Stamp()), answer.stamp)

    def _entries(self, after: int) -> Any:
        with self.journals[0].reading() as reading:
            return reading.entries(after, 1000)


def answer(outcome: Written | Refused) -> Answer:
    """Return the outcome in the form of the model."""
    if isinstance(outcome, Refused):
        return type(outcome.error)
    result = outcome.result
    value = (result.stamp, str(result.before)) if isinstance(result, Granted) else result
    return Accepted(outcome.stamp, value, outcome.at_s, outcome.is_repeat)


def table(rows: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return rows in the form of the model."""
    return {row.key: msgspec.structs.asdict(row) for row in rows}


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make calls in threads that start together; return the result of each."""
    ready = threading.Barrier(len(calls))
    returned: dict[int, T] = {}

    def call(number: int) -> None:
        ready.wait()
        returned[number] = calls[number]()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [returned[number] for number in range(len(calls))]


def _follows(before: str, after: str) -> bool:
    return LeaseState(after) in NEXT[LeaseState(before)]


def _leads_to(before: str, after: str) -> bool:
    """Return whether the passing of time alone leads from one state to the other."""
    return _follows(before, after) or (before == "held" and after == "hard")


def _die(connection: object) -> None:
    raise Crash("before the commit")


def _die_after_write(point: str) -> None:
    if point.endswith("journal-write.after"):
        raise Crash(point)
