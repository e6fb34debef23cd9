"""Grouping: what many threads write at once goes into one transaction.

The head row serialises writers, so a transaction a mutation is bounded by the disk's syncs. One thread leads:
it writes for all who wait by then, makes way for the first of those who came meanwhile, and hands out what
came of its own group. Nobody waits for a group to fill.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from storage_core.errors import OutcomeUnknownError
from storage_core.journal.mutation import Mutation, Outcome

LARGEST: Final = 512
"""Mutations in one transaction; more wait for the next."""

_INTERRUPTED: Final = (
    "the thread that wrote to the journal for this one, too, was interrupted: it may have been applied; the "
    "same request id asks again without doing it twice"
)

Write = Callable[[Sequence[Mutation]], list[Outcome]]


class Group:
    """Joins concurrent writes.

    Args:
        write: One transaction.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.forked()

    def forked(self) -> None:
        """Begin with nothing waiting: the parent's threads, and who holds its locks, are not here."""
        self._changing = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._leader: _Waiting | None = None

    def submit(self, mutations: Sequence[Mutation]) -> list[Outcome]:
        """Write these, perhaps together with what others submit meanwhile.

        Raises:
            LockgateError: What the transaction raised, to everybody who was in it.
        """
        mine = _Waiting(mutations)
        try:
            with self._changing:
                self._queue.append(mine)
                leads = self._leader is None
                if leads:
                    self._leader = mine
            if not leads:
                mine.wait()  # until it has an answer, or is to lead
            if not mine.is_done:
                self._lead()
        except BaseException:
            self._leave(mine)
            raise
        return mine.answer()

    def _lead(self) -> None:
        group = self._next()
        try:
            outcomes = iter(self._write([mutation for waiting in group for mutation in waiting.mutations]))
            for waiting in group:
                waiting.outcomes = list(islice(outcomes, len(waiting.mutations)))
        except Exception as error:  # noqa: BLE001 - each of the group raises it
            for waiting in group:
                waiting.error = error
        except BaseException:
            for waiting in group:
                waiting.error = OutcomeUnknownError(_INTERRUPTED)
            raise  # to the thread that was interrupted; those that it wrote for ask again
        finally:
            self._make_way()
            for waiting in group:
                waiting.wake()

    def _next(self) -> list[_Waiting]:
        """Take the oldest that fit together."""
        with self._changing:
            group = [self._queue.popleft()]
            size = len(group[0].mutations)
            while self._queue and (size := size + len(self._queue[0].mutations)) <= LARGEST:
                group.append(self._queue.popleft())
        return group

    def _make_way(self) -> None:
        """Let the first of those who wait lead."""
        with self._changing:
            self._leader = next_leader = self._queue[0] if self._queue else None
        if next_leader is not None:
            next_leader.wake()

    def _leave(self, mine: _Waiting) -> None:
        """Wait no more, for this thread was interrupted: nobody must wait for it."""
        with self._changing:
            if mine in self._queue:
                self._queue.remove(mine)
            is_leader = self._leader is mine
        if is_leader:
            self._make_way()


class _Waiting:
    """One caller's mutations, and what has come of them."""

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self.mutations = mutations
        self.outcomes: list[Outcome] | None = None
        self.error: Exception | None = None
        self._woken = threading.Lock()
        self._woken.acquire()

    @property
    def is_done(self) -> bool:
        return self.outcomes is not None or self.error is not None

    def wait(self) -> None:
        self._woken.acquire()

    def wake(self) -> None:
        self._woken.release()

    def answer(self) -> list[Outcome]:
        if self.error is not None:
            raise self.error
        return self.outcomes or []
