"""Writes number entries without a gap, have one effect per request, and refuse mutations individually."""

from __future__ import annotations

import threading

from lockgate.storage_core.errors import LeaseHeldError
from lockgate.storage_core.journal import Journal, Mutation, Refused, Stamp, Written, open_journal
from lockgate.storage_core.journal.entries.lease_entries import TakeLease


def take(resource: str) -> TakeLease:
    return TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120)


def sequences(journal: Journal) -> list[int]:
    with journal.reading() as reading:
        return [entry.sequence for entry in reading.entries(0, 10_000)]


def test_entries_are_numbered_from_one_and_a_refused_mutation_gets_no_number(journal: Journal) -> None:
    first, refused, second = journal.write(
        [Mutation(op=take("a")), Mutation(op=take("a")), Mutation(op=take("b"))]
    )
    assert isinstance(first, Written)
    assert isinstance(second, Written)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, LeaseHeldError)
    assert (first.stamp, second.stamp) == (Stamp(1, 1), Stamp(1, 2))
    assert sequences(journal) == [1, 2]


def test_the_same_request_has_one_effect_and_one_result(journal: Journal, journal_url: str) -> None:
    first = journal.apply(take("a"), "request-1")
    with open_journal(journal_url) as another:
        again = another.apply(take("a"), "request-1")
    assert (again.stamp, again.result, again.at_s) == (first.stamp, first.result, first.at_s)
    assert (first.is_repeat, again.is_repeat) == (False, True)
    assert sequences(journal) == [1]


def test_concurrent_writes_of_many_threads_are_numbered_without_a_gap(journal: Journal) -> None:
    def write(thread: int) -> None:
        for number in range(10):
            journal.apply(take(f"{thread}-{number}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sequences(journal) == list(range(1, 81))
    assert journal.seen == Stamp(1, 80)
