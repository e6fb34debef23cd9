"""Tests of bounded concurrency: how many calls run at a time, and what an error does."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import pytest

from lockgate.storage_core.concurrency import in_parallel, overlapping
from lockgate.storage_core.settings import FAR_CALLS, load_settings


class Store:
    """Answers each call after a time, the first one after another; counts the calls under way at a time."""

    def __init__(self, answers_after_s: float, first_after_s: float | None = None) -> None:
        self.answers_after_s = answers_after_s
        self.first_after_s = answers_after_s if first_after_s is None else first_after_s
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def call(self, number: int) -> int:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.answers_after_s if number else self.first_after_s)
        with self._lock:
            self.at_once -= 1
        return number


def test_a_store_that_is_far_away_is_asked_by_more_calls_at_a_time() -> None:
    far = Store(answers_after_s=0.03)
    assert sorted(in_parallel(far.call, range(200), 4, 20)) == list(range(200))
    assert far.most == 20


def test_one_fast_answer_shows_that_the_store_is_near() -> None:
    near = Store(answers_after_s=0.03, first_after_s=0.0)
    assert sorted(in_parallel(near.call, range(40), 4, 20)) == list(range(40))
    assert near.most == 4


def test_without_a_larger_number_the_limit_holds_at_any_distance() -> None:
    far = Store(answers_after_s=0.02)
    assert sorted(in_parallel(far.call, range(40), 4)) == list(range(40))
    assert far.most == 4


def test_an_error_stops_the_reading_and_leaves_no_thread() -> None:
    taken = list[int]()

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    def call(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="five"):
        list(in_parallel(call, items(), 2))
    assert len(taken) <= 5 + 1 + 2
    assert set(threading.enumerate()) <= before


def test_calls_see_the_context_of_the_caller() -> None:
    seen = ContextVar("seen", default="")
    seen.set("of the caller")
    assert set(in_parallel(lambda _: seen.get(), range(20), 4)) == {"of the caller"}


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    results = in_parallel(lambda number: number, range(100), 4)
    next(results)
    assert not set(threading.enumerate()) <= before
    results.close()
    assert set(threading.enumerate()) <= before


def test_an_iteration_that_a_traceback_keeps_alive_does_not_keep_python_from_ending() -> None:
    script = """
from lockgate.storage_core.concurrency import in_parallel

def main():
    found = in_parallel(str, range(100), 4)
    for _ in found:
        raise ValueError("stop")

main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, b"ValueError: stop")


def test_an_iteration_goes_on_in_another_thread_after_the_main_one_has_ended() -> None:
    script = """
import threading, time
from lockgate.storage_core.concurrency import in_parallel

def items():
    yield from "ab"
    time.sleep(2.5)
    yield "c"

threading.Thread(target=lambda: print(sorted(in_parallel(str, items(), 2)))).start()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr) == (b"['a', 'b', 'c']\n", b"")


def test_no_more_threads_are_started_than_there_are_items() -> None:
    before = threading.active_count()
    barrier = threading.Barrier(3)
    assert list(in_parallel(lambda _: barrier.wait() >= 0, range(3), 50)) == [True] * 3
    assert max(in_parallel(lambda _: threading.active_count(), range(3), 50)) <= before + 3


def test_a_parallelism_that_is_set_is_never_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKGATE_PARALLELISM", raising=False)
    assert (load_settings().near_calls, load_settings().far_calls) == (16, FAR_CALLS)
    monkeypatch.setenv("LOCKGATE_PARALLELISM", "16")
    assert load_settings().far_calls == 16


class Far:
    """A store that answers calls from a thread of its own, in a given order, without a thread for each."""

    def __init__(self, *, fails_at: int = -1, silent_at: int = -1) -> None:
        self.fails_at, self.silent_at = fails_at, silent_at
        self.at_once = self.most = 0
        self.waited: list[int] = []
        self._lock = threading.Lock()

    def send(self, number: int, arrived: Callable[[], None]) -> Callable[[], int]:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)

        def end() -> None:
            with self._lock:
                self.at_once -= 1
            arrived()

        if number != self.silent_at:
            threading.Timer(0.02, end).start()

        def result() -> int:
            self.waited.append(number)
            if number in {self.fails_at, self.silent_at}:
                raise ValueError(number)
            return number

        return result


def test_calls_overlap_up_to_the_limit_without_threads() -> None:
    near = Far()
    assert sorted(overlapping(near.send, range(40), 4, patience_s=9)) == list(range(40))
    assert near.most == 4


def test_more_calls_overlap_at_a_store_that_is_far_away() -> None:
    far = Far()
    assert sorted(overlapping(far.send, range(200), 4, 16, patience_s=9)) == list(range(200))
    assert far.most == 16


def test_results_come_in_the_order_of_their_answers() -> None:
    ends: list[Callable[[], None]] = []

    def send(number: int, arrived: Callable[[], None]) -> Callable[[], int]:
        ends.append(arrived)
        if number == 3:
            for end in reversed(ends):
                end()
        return lambda: number

    assert list(overlapping(send, range(4), 9, patience_s=9)) == [3, 2, 1, 0]


def test_an_error_stops_the_reading_and_waits_for_the_calls_under_way() -> None:
    store, taken = Far(fails_at=5), list[int]()

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with pytest.raises(ValueError, match="5"):
        list(overlapping(store.send, items(), 4, patience_s=9))
    assert len(taken) < 100  # a timer may be late
    assert sorted(store.waited) == taken


def test_a_reader_that_stops_early_waits_for_the_calls_under_way() -> None:
    store = Far()
    results = overlapping(store.send, range(100), 4, patience_s=9)
    next(results)
    results.close()
    assert sorted(store.waited) == [0, 1, 2, 3]


def test_a_call_without_an_end_is_asked_for_its_result_in_the_end() -> None:
    with pytest.raises(ValueError, match="2"):
        list(overlapping(Far(silent_at=2).send, range(4), 9, patience_s=0.1))


def test_a_slow_call_does_not_keep_others_from_being_sent() -> None:
    ends: list[Callable[[], None]] = []

    def send(number: int, arrived: Callable[[], None]) -> Callable[[], int]:
        if number:
            threading.Timer(0.02, arrived).start()
        else:
            ends.append(arrived)
        if number == 19:
            threading.Timer(0.1, ends[0]).start()
        return lambda: number

    assert list(overlapping(send, range(20), 2, patience_s=9))[-1] == 0


def test_an_iteration_that_a_traceback_keeps_alive_does_not_wait_when_python_ends() -> None:
    script = """
import threading
from lockgate.storage_core.concurrency import overlapping

def send(number, arrived):
    ended = threading.Event()
    def end():
        arrived()
        ended.set()
    timer = threading.Timer(0.1 * number, end)
    timer.daemon = True
    timer.start()
    return lambda: ended.wait(60)

def main():
    found = overlapping(send, range(4), 4, patience_s=60)
    for _ in found:
        raise ValueError("stop")

main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, b"ValueError: stop")
