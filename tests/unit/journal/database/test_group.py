"""Group commit: threads share a transaction, each gets its own result, and none waits for a dead leader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from lockgate.storage_core.errors import JournalUnavailableError, OutcomeUnknownError
from lockgate.storage_core.journal.entries.claim_entries import ReleaseName
from lockgate.storage_core.journal.write.group_commit import LARGEST, GroupCommit
from lockgate.storage_core.journal.write.mutation import Mutation, WriteOutcome, Written
from lockgate.storage_core.stamp import Stamp


def named(name: str) -> Mutation:
    return Mutation(op=ReleaseName(store="s", name=name, body_sha256=""), request_id=name)


def names(count: int, of: str = "m") -> list[Mutation]:
    return [named(f"{of}-{number}") for number in range(count)]


@dataclass
class Transactions:
    """Numbers the written mutations; with `hold_first` the first transaction lasts until `go` is set."""

    groups: list[list[str]] = field(default_factory=list)
    errors: dict[int, BaseException] = field(default_factory=dict)
    hold_first: bool = False
    began: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    sequence: int = 0

    def write(self, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        number = len(self.groups)
        self.groups.append([mutation.request_id for mutation in mutations])
        if self.hold_first and number == 0:
            self.began.set()
            assert self.go.wait(60)
        if number in self.errors:
            raise self.errors[number]
        outcomes = list[WriteOutcome]()
        for mutation in mutations:
            self.sequence += 1
            outcomes.append(Written(stamp=Stamp(1, self.sequence), result=mutation.request_id, at_s=0.0))
        return outcomes


@dataclass
class Callers:
    """Threads that submit mutations, and the result of each."""

    group: GroupCommit
    threads: list[threading.Thread] = field(default_factory=list)
    results: dict[str, list[object] | BaseException] = field(default_factory=dict)

    def submit(self, mutations: Sequence[Mutation], *, queued: Callable[[], bool]) -> None:
        """Submit in a new thread, and wait until it is in the queue."""

        def run() -> None:
            name = mutations[0].request_id
            try:
                outcomes = self.group.submit(mutations)
                self.results[name] = [o.result for o in outcomes if isinstance(o, Written)]
            except BaseException as error:  # noqa: BLE001 - recorded as the result of the caller
                self.results[name] = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)
        wait_until(queued)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came to that")


@contextmanager
def first_one_held(**options: object) -> Iterator[tuple[Transactions, GroupCommit, Callers]]:
    """Yield a group whose first transaction, that of `first`, lasts until the end of the block."""
    transactions = Transactions(hold_first=True, **options)  # type: ignore[arg-type]
    group = GroupCommit(transactions.write)
    callers = Callers(group)
    callers.submit([named("first")], queued=transactions.began.is_set)
    try:
        yield transactions, group, callers
    finally:
        transactions.go.set()
        callers.join()


def waits(group: GroupCommit, count: int) -> Callable[[], bool]:
    return lambda: len(group._queue) == count


def test_mutations_submitted_during_a_write_share_the_next_transaction() -> None:
    with first_one_held() as (transactions, group, callers):
        for number in range(5):
            callers.submit(names(2, f"c{number}"), queued=waits(group, number + 1))
    assert [len(written) for written in transactions.groups] == [1, 10]
    assert callers.results["first"] == ["first"]
    assert all(callers.results[f"c{n}-0"] == [f"c{n}-0", f"c{n}-1"] for n in range(5))


def test_mutations_over_the_transaction_limit_wait_for_the_next_transaction() -> None:
    with first_one_held() as (transactions, group, callers):
        for number in range(3):
            callers.submit(names(LARGEST // 2, f"c{number}"), queued=waits(group, number + 1))
    assert [len(written) for written in transactions.groups] == [1, LARGEST, LARGEST // 2]


def test_one_caller_with_more_than_the_limit_is_written_in_one_transaction() -> None:
    transactions = Transactions()
    assert len(GroupCommit(transactions.write).submit(names(LARGEST + 1))) == LARGEST + 1
    assert [len(written) for written in transactions.groups] == [LARGEST + 1]


def test_a_failed_transaction_raises_for_all_its_callers_and_for_no_others() -> None:
    refused = JournalUnavailableError("down")
    with first_one_held(errors={1: refused}) as (transactions, group, callers):
        for number in range(2):
            callers.submit(names(LARGEST // 2, f"c{number}"), queued=waits(group, number + 1))
        callers.submit(names(1, "later"), queued=waits(group, 3))
    assert (callers.results["c0-0"], callers.results["c1-0"]) == (refused, refused)
    assert callers.results["later-0"] == ["later-0"]
    assert len(transactions.groups) == 3


def test_callers_written_by_an_interrupted_thread_get_an_unknown_outcome() -> None:
    error = KeyboardInterrupt()
    with first_one_held(errors={1: error}) as (_, group, callers):
        callers.submit(names(1, "leader"), queued=waits(group, 1))
        callers.submit(names(1, "follower"), queued=waits(group, 2))
    assert callers.results["leader-0"] is error
    assert isinstance(callers.results["follower-0"], OutcomeUnknownError)
    assert group.submit([named("next")]), "the group goes on"


@pytest.mark.parametrize("appointed", [False, True])
def test_no_caller_waits_for_a_thread_that_was_interrupted_while_waiting(
    appointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's exception ends the wait of one caller before or just after it becomes the leader."""
    with first_one_held() as (transactions, group, callers):

        def interrupted(waiting: object) -> None:
            if appointed:
                transactions.go.set()
                wait_until(lambda: group._leader is waiting)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("lockgate.storage_core.journal.write.group_commit._Waiting.wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                group.submit(names(1, "gone"))
        callers.submit(names(1, "after"), queued=lambda: appointed or len(group._queue) == 1)
    assert callers.results["after-0"] == ["after-0"]
    assert ["gone-0"] not in transactions.groups


def test_a_fork_starts_with_an_empty_queue_and_no_leader() -> None:
    with first_one_held() as (_, group, callers):
        callers.submit(names(1, "parents"), queued=waits(group, 1))
        before = (group._queue, group._leader, group._changing)
        group.after_fork_in_child()
        try:
            (written,) = group.submit([named("child")])
        finally:
            group._queue, group._leader, group._changing = before
    assert isinstance(written, Written)
    assert callers.results["parents-0"] == ["parents-0"]


def test_each_of_sixty_four_threads_gets_the_result_of_its_own_mutation() -> None:
    transactions = Transactions()
    group = GroupCommit(transactions.write)
    wrong = list[str]()

    def call(thread: int) -> None:
        for number in range(50):
            name = f"{thread}-{number}"
            (outcome,) = group.submit([named(name)])
            if not isinstance(outcome, Written) or outcome.result != name:
                wrong.append(name)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(len(written) for written in transactions.groups) == 64 * 50
    assert (len(group._queue), group._leader) == (0, None)
