"""Calls to all members at once: in the caller's thread and in threads beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from lockgate.storage_core.failpoints import current_step, step
from lockgate.storage_core.files.writing.member_calls import THREAD, MemberCalls

Started = Callable[[], list[threading.Thread]]


@pytest.fixture
def started() -> Started:
    """Return a function that lists the threads of the test; writers of earlier tests may have some still."""
    others = set(threading.enumerate())
    return lambda: [thread for thread in set(threading.enumerate()) - others if thread.name == THREAD]


def test_calls_run_at_once_and_their_results_are_in_order(started: Started) -> None:
    calls, together = MemberCalls(), threading.Barrier(3, timeout=60)

    def call(number: int) -> tuple[int, str, bool]:
        together.wait()
        return number, current_step(), threading.current_thread() is threading.main_thread()

    with step("write"):
        for _ in range(2):
            results = calls.all([partial(call, number) for number in range(3)])
            assert results == [(0, "write", True), (1, "write", False), (2, "write", False)]
    calls.end()
    assert started() == []


def test_one_call_needs_no_thread(started: Started) -> None:
    calls = MemberCalls()
    assert calls.all([lambda: 1]) == [1]
    assert started() == []


def test_an_error_in_a_thread_is_raised_and_the_thread_goes_on() -> None:
    calls = MemberCalls()
    with pytest.raises(ZeroDivisionError):
        calls.all([lambda: 1.0, lambda: 1 / 0])
    assert calls.all([lambda: 1, lambda: 2]) == [1, 2]
    calls.end()


def test_all_threads_end_also_one_whose_start_was_interrupted(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, start = MemberCalls(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calls.all([lambda: 1, lambda: 2])
    assert calls.all([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
    assert len(started()) == 3
    calls.end()
    for thread in started():
        thread.join(60)
    assert started() == []


def test_the_threads_of_a_writer_that_is_dropped_end(started: Started) -> None:
    calls = MemberCalls()
    assert calls.all([lambda: 1, lambda: 2]) == [1, 2]
    (thread,) = started()
    del calls
    thread.join(60)
    assert not thread.is_alive()


def test_when_python_is_ending_all_calls_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert MemberCalls().all([threading.current_thread] * 3) == [threading.main_thread()] * 3
