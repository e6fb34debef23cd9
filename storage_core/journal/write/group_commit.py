"""Group commit: concurrent mutations of several threads share one transaction.

The head row serialises writers, so with one transaction for each mutation fsync limits the throughput. One
thread becomes leader, writes for all threads that wait, hands leadership to the first thread that arrived in
the meantime, and returns the outcomes to its group. No thread waits for a group to fill.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from lockgate.storage_core.errors import LockgateError, OutcomeUnknownError
from lockgate.storage_core.journal.write.mutation import Mutation, WriteOutcome

LARGEST: Final = 512
"""Mutations in one transaction; more wait for the next."""

_INTERRUPTED: Final = (
    "the thread that wrote to the journal for this one, too, was interrupted or failed: it may have been "
    "applied; the same request id asks again without doing it twice"
)

Write = Callable[[Sequence[Mutation]], list[WriteOutcome]]


class GroupCommit:
    """Joins concurrent writes."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Start with an empty queue and a new lock: the parent's threads do not exist here."""
        self._changing = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._leader: _Waiting | None = None

    def submit(self, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        """Write mutations, perhaps in one transaction with those of other threads.

        Raises:
            LockgateError: The error of the transaction; each of its threads raises it.
        """
        mine = _Waiting(mutations)
        try:
            with self._changing:
                self._queue.append(mine)
                leads = self._leader is None
                if leads:
                    self._leader = mine
            if not leads:
                mine.wait()  # until it is done or becomes leader
            if not mine.is_done:
                self._lead(mine)
        except BaseException:
            self._leave(mine)
            raise
        return mine.result()

    def _lead(self, mine: _Waiting) -> None:
        self._gather(mine)
        try:
            outcomes = iter(self._write([mutation for member in mine.group for mutation in member.mutations]))
            for member in mine.group:
                member.outcomes = list(islice(outcomes, len(member.mutations)))
        except LockgateError as error:
            for member in mine.group:
                member.error = error
        self._hand_over(mine)

    def _gather(self, mine: _Waiting) -> None:
        """Move the oldest callers that fit from the queue into the group."""
        with self._changing:
            size = 0
            while self._queue:
                size += len(self._queue[0].mutations)
                if mine.group and size > LARGEST:
                    break
                mine.group.append(self._queue.popleft())

    def _hand_over(self, mine: _Waiting) -> None:
        """Make the first waiting caller the leader, and wake the group."""
        with self._changing:
            if self._leader is mine:
                self._leader = self._queue[0] if self._queue else None
                if self._leader is not None:
                    self._leader.wake()
        for member in mine.group:
            member.wake()
        mine.group.clear()  # it contains itself: a reference cycle

    def _leave(self, mine: _Waiting) -> None:
        """Withdraw an interrupted thread, so that no other thread waits for it."""
        with self._changing:
            if mine in self._queue:
                self._queue.remove(mine)
        for member in mine.group:
            if not member.is_done:
                member.error = OutcomeUnknownError(_INTERRUPTED)
        self._hand_over(mine)


class _Waiting:
    """One caller's mutations and their outcomes, and of a leader: the callers that it writes for."""

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self.mutations = mutations
        self.outcomes: list[WriteOutcome] | None = None
        self.error: LockgateError | None = None
        self.group: list[_Waiting] = []
        self._woken = threading.Event()

    @property
    def is_done(self) -> bool:
        return self.outcomes is not None or self.error is not None

    def wait(self) -> None:
        self._woken.wait()

    def wake(self) -> None:
        self._woken.set()

    def result(self) -> list[WriteOutcome]:
        if self.error is not None:
            raise self.error
        return self.outcomes or []
