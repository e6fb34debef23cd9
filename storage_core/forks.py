"""Forks: a child leaves its parent's connections to the parent, and opens its own.

What a child inherits it neither uses, nor closes, nor lets anybody close: on PostgreSQL it would end the
parent's session, on SQLite roll its transaction back. SQLite also remembers, for a whole process, which files
it has locked, and a child believes what it inherited. So connections to SQLite are closed before a fork, as
soon as the transactions of other threads have ended. Where one does not end, or is the forking thread's own,
the child is refused SQLite.

Source: "How To Corrupt An SQLite Database File", section 2.6.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 10.0
"""A fork waits so long for transactions of other threads."""


class Forkable(ABC):
    """What is told of this process's forks."""

    def before_fork(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what a child must not inherit; by default nothing."""

    @abstractmethod
    def forked(self) -> None:
        """Begin anew, in a child: the parent's threads, and what they held, are not here."""


class Gate:
    """What transactions pass, and a fork shuts: it lets none begin, and waits for those that have."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin open and empty."""
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        self._is_shut = False

    @contextmanager
    def passage(self) -> Iterator[None]:
        """Hold a transaction; a thread that holds one already may begin another."""
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_shut or thread in self._inside)
            self._inside[thread] = self._inside.get(thread, 0) + 1
        inside = self._inside
        try:
            yield
        finally:
            if inside is self._inside:  # not in a child, whose gate is another
                self._leave(thread)

    def shut(self, patience_s: float) -> bool:
        """Let no transaction begin; returns whether, after so many seconds at most, none is under way."""
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_shut)
            self._is_shut = True
            self._changed.wait_for(lambda: self._inside.keys() <= {thread}, patience_s)
            return not self._inside

    def open(self) -> None:
        """Let transactions begin again."""
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()

    def _leave(self, thread: int) -> None:
        with self._changed:
            self._inside[thread] -= 1
            if not self._inside[thread]:
                del self._inside[thread]
            self._changed.notify_all()


GATE: Final = Gate()
"""Every transaction on SQLite passes it."""


class Forks:
    """All that must be told of this process's forks, for as long as it lives.

    Attributes:
        is_tainted: Whether this process was forked amid a transaction on SQLite.
    """

    def __init__(self) -> None:
        self.is_tainted = False
        self._told: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._telling = threading.Lock()
        self._was_quiet = True

    def tell(self, forkable: Forkable) -> None:
        """Tell it of every fork from now on."""
        with self._telling:
            self._told.add(forkable)

    def before(self) -> None:
        """Make ready for a fork."""
        self._was_quiet = GATE.shut(PATIENCE_S)
        self._telling.acquire()
        for forkable in self._told:
            forkable.before_fork()

    def in_parent(self) -> None:
        """Go on as if nothing had been."""
        self._telling.release()
        GATE.open()

    def in_child(self) -> None:
        """Leave to the parent what is the parent's."""
        self._telling = threading.Lock()
        GATE.reset()
        self.is_tainted = self.is_tainted or not self._was_quiet
        for forkable in self._told:
            forkable.forked()


FORKS: Final = Forks()
"""Those of this process."""

os.register_at_fork(before=FORKS.before, after_in_parent=FORKS.in_parent, after_in_child=FORKS.in_child)


def leave_to_parent(inherited: object) -> None:
    """Never let go of something inherited, not even when the interpreter ends: that would close it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
