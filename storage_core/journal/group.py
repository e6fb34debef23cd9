"""Grouping: what many threads write at once goes into one transaction.

The head row serialises writers, so a transaction a mutation is bounded by the disk's syncs. Whoever gets the
lock writes for all who wait for it; nobody waits for a group to fill.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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
        self._queue: list[_Waiting] = []
        self._queued = threading.Lock()
        self._leading = threading.Lock()

    def submit(self, mutations: Sequence[Mutation]) -> list[Outcome]:
        """Write these, perhaps together with what others submit meanwhile.

        Raises:
            LockgateError: What the transaction raised, to everybody who was in it.
        """
        mine = _Waiting(mutations)
        with self._queued:
            self._queue.append(mine)
        while not mine.is_done:
            with self._leading:
                if not mine.is_done:
                    self._lead(self._next())
        return mine.answer()

    def _next(self) -> list[_Waiting]:
        """Take the oldest that fit together."""
        with self._queued:
            size, count = 0, 0
            for waiting in self._queue:
                size += len(waiting.mutations)
                if count and size > LARGEST:
                    break
                count += 1
            group, self._queue = self._queue[:count], self._queue[count:]
        return group

    def _lead(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = self._write([mutation for waiting in group for mutation in waiting.mutations])
        except BaseException as error:
            for waiting in group:
                waiting.error = error if isinstance(error, Exception) else OutcomeUnknownError(_INTERRUPTED)
            if not isinstance(error, Exception):
                raise  # to the thread that was interrupted; those that it wrote for ask again
            return
        start = 0
        for waiting in group:
            waiting.outcomes = outcomes[start : start + len(waiting.mutations)]
            start += len(waiting.mutations)


class _Waiting:
    """One caller's mutations, and what has come of them."""

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self.mutations = mutations
        self.outcomes: list[Outcome] | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.outcomes is not None or self.error is not None

    def answer(self) -> list[Outcome]:
        if self.error is not None:
            raise self.error
        return self.outcomes or []
