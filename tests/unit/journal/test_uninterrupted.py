"""An exception of a signal handler ends the main thread's wait for a call, and never the call."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from lockgate.storage_core.failpoints import current_step, step
from lockgate.storage_core.journal.uninterrupted import Uninterrupted


class Interrupted(BaseException):
    """Raised by the handler."""


CAME: list[int] = []


@pytest.fixture(autouse=True)
def handler() -> Iterator[Callable[..., None]]:
    def interrupt(number: int, frame: object) -> None:
        CAME.append(number)
        raise Interrupted

    CAME.clear()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGALRM, signal.SIGUSR1)}
    yield interrupt
    for number, former in before.items():
        signal.signal(number, former)


def test_a_call_goes_on_after_its_wait_was_interrupted_and_comes_before_the_next() -> None:
    calls, may_end = Uninterrupted(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        assert may_end.wait(10)
        done.append("slow")

    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Interrupted):
        calls.run(slow)
    assert not done
    assert not calls.is_idle
    may_end.set()
    assert calls.run_brief(lambda: list(done)) == ["slow"]
    assert calls.is_idle


def test_the_result_of_an_interrupted_wait_is_given_to_whoever_closes_it() -> None:
    calls, may_end = Uninterrupted(), threading.Event()
    closed: list[str] = []
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Interrupted):
        calls.run(lambda: may_end.wait(10) and "file", unwanted=lambda file: closed.append(str(file)))
    may_end.set()
    calls.run(lambda: None)
    assert closed == ["file"]
    assert calls.run(lambda: "wanted", unwanted=closed.append) == "wanted"
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 // 0, unwanted=lambda number: closed.append(str(number)))
    assert closed == ["file"]


def test_a_call_sees_the_context_and_calls_of_other_threads_are_made_there() -> None:
    calls = Uninterrupted()
    with step("here"):
        assert calls.run(current_step) == "here"
    assert calls.run(threading.current_thread) is not threading.current_thread()
    seen: list[bool] = []
    thread = threading.Thread(
        target=lambda: seen.append(calls.run(threading.current_thread) is threading.current_thread())
    )
    thread.start()
    thread.join()
    assert seen == [True]


def test_handlers_run_after_a_brief_call_and_are_set_as_before(handler: Callable[..., None]) -> None:
    done: list[int] = []

    def call() -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.01)  # both are delivered here
        done.append(1)
        return 1

    with pytest.raises(Interrupted):
        Uninterrupted().run_brief(call)
    assert done == [1]
    assert sorted(CAME) == sorted([signal.SIGUSR1, signal.SIGALRM])
    assert signal.getsignal(signal.SIGUSR1) is signal.getsignal(signal.SIGALRM) is handler
    assert Uninterrupted().run_brief(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        Uninterrupted().run_brief(lambda: 1 // 0)
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_a_result_and_an_error_are_kept_by_nobody_but_the_caller() -> None:
    class Result:
        """Something whose end matters."""

    def fail() -> None:
        local = Result()
        kept.append(weakref.ref(local))
        raise LookupError

    calls, kept = Uninterrupted(), list[weakref.ref[Result]]()
    result = calls.run(Result)
    kept.append(weakref.ref(result))
    with suppress(LookupError):
        calls.run(fail)
    del result
    deadline_s = time.monotonic() + 10
    while any(one() for one in kept) and time.monotonic() < deadline_s:
        time.sleep(0.001)  # the thread lets go of its last call a moment after the caller has the result
    assert [one() for one in kept] == [None, None]
