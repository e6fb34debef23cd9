"""Grouping: what many threads write at once goes into one transaction.

The head row serialises writers, so a transaction a mutation is bounded by the disk's syncs. One thread leads:
it writes for all who wait by then, makes way for the first of those who came meanwhile, and hands out what
came of its own group. Nobody waits for a group to fill.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.journal.write.mutation import Mutation, Outcome

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
                self._lead(mine)
        except BaseException:
            try:
                self._leave(mine)
            finally:
                self._leave(mine)  # a second interruption may have cut the first one short
            raise
        return mine.answer()

    def _lead(self, mine: _Waiting) -> None:
        self._gather(mine)
        try:
            outcomes = iter(self._write([mutation for one in mine.group for mutation in one.mutations]))
            for one in mine.group:
                one.outcomes = list(islice(outcomes, len(one.mutations)))
        except Exception as error:  # noqa: BLE001 - each of the group raises it
            for one in mine.group:
                one.error = error
        self._make_way(mine)

    def _gather(self, mine: _Waiting) -> None:
        """Take the oldest that fit together; nobody is out of the queue before he is in the group."""
        with self._changing:
            size = 0
            for one in self._queue:
                size += len(one.mutations)
                if mine.group and size > LARGEST:
                    break
                mine.group.append(one)
            for _ in mine.group:
                self._queue.popleft()

    def _make_way(self, mine: _Waiting) -> None:
        """Let the first of those who wait lead, and give the group its answers; twice is as good as once."""
        with self._changing:
            if self._leader is mine:
                self._leader = self._queue[0] if self._queue else None
            leader = self._leader
        if leader is not None:
            leader.wake()
        for one in mine.group:
            one.wake()
        mine.group.clear()  # it holds itself

    def _leave(self, mine: _Waiting) -> None:
        """Wait no more, for this thread was interrupted, wherever it was: nobody must wait for it."""
        with self._changing:
            for one in (mine, *mine.group):
                if one in self._queue:
                    self._queue.remove(one)
        for one in mine.group:
            if not one.is_done:
                one.error = OutcomeUnknownError(_INTERRUPTED)
        self._make_way(mine)


class _Waiting:
    """One caller's mutations, and what has come of them.

    Attributes:
        group: Once it leads: those for whom it writes, itself among them.
    """

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self.mutations = mutations
        self.outcomes: list[Outcome] | None = None
        self.error: Exception | None = None
        self.group: list[_Waiting] = []
        self._woken = threading.Lock()
        self._woken.acquire()

    @property
    def is_done(self) -> bool:
        return self.outcomes is not None or self.error is not None

    def wait(self) -> None:
        self._woken.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self._woken.release()

    def answer(self) -> list[Outcome]:
        if self.error is not None:
            raise self.error
        return self.outcomes or []
