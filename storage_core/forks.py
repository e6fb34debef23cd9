"""Fork safety: a child process leaves its parent's connections alone and opens its own.

A child does not use, close or finalise a connection that it inherited: on PostgreSQL that would end the
parent's session, on SQLite roll its transaction back. SQLite also remembers, for a whole process, which files
it has locked, and a child would believe what it inherited. So all connections to SQLite are closed before a
fork. That is not possible while a transaction is open: the child of such a fork is refused SQLite.

A fork waits a short time for the transactions of other threads, and lets none begin meanwhile. Without the
wait, a child could not use SQLite at all if its parent's lease renewer happened to write at that moment, and
threads that write without a pause would leave no moment for a fork.

Source: "How To Corrupt An SQLite Database File", section 2.6.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lockgate.storage_core.errors import FencedError

PATIENCE_S: Final = 2.0
"""How long a fork waits for transactions of other threads."""


class Forkable(ABC):
    """An object that holds what a child process must not use: connections, threads, locks."""

    def before_fork(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what a child must not inherit; by default nothing."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Start again, in a child: the parent's threads, and the locks they hold, are not here."""


class Forks:
    """Prepares this process for forks, and its children after them.

    Attributes:
        is_tainted: Whether this process was forked while a transaction on SQLite was open.
    """

    def __init__(self) -> None:
        self.is_tainted = False
        self._forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._was_quiet = True
        self._reset()

    def tell(self, forkable: Forkable) -> None:
        """Register an object, which then hears of every fork."""
        with self._changed:
            self._forkables.add(forkable)

    @contextmanager
    def sqlite_transaction(self) -> Iterator[None]:
        """Hold a transaction on SQLite. None begins during a fork, except in a thread that holds one."""
        changed, thread = self._changed, threading.get_ident()
        with changed:
            changed.wait_for(lambda: not self._is_forking or self._open[thread])
            self._open[thread] += 1
        try:
            yield
        finally:
            if changed is self._changed:  # a child has replaced it
                with changed:
                    self._open -= Counter([thread])
                    changed.notify_all()

    def before(self) -> None:
        """Wait for open transactions, then close what a child must not inherit; hold the lock."""
        thread = threading.get_ident()
        self._changed.acquire()
        self._is_forking = True
        self._changed.wait_for(lambda: self._open.keys() <= {thread}, PATIENCE_S)
        self._was_quiet = not self._open
        for forkable in self._forkables:
            forkable.before_fork()

    def after_in_parent(self) -> None:
        """Let transactions begin again."""
        self._is_forking = False
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Leave to the parent what is the parent's."""
        self._reset()
        self.is_tainted = self.is_tainted or not self._was_quiet
        for forkable in self._forkables:
            forkable.after_fork_in_child()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._open: Counter[int] = Counter()
        self._is_forking = False


FORKS: Final = Forks()
"""The forks of this process."""

os.register_at_fork(
    before=FORKS.before, after_in_parent=FORKS.after_in_parent, after_in_child=FORKS.after_in_child
)


class ForkGuard:
    """Refuses to act in a fork of the process that created it.

    A fork has a copy of everything but the threads: waiting for one of those would never end, and what the
    copy drops or commits is its parent's.

    Args:
        what: Name of what belongs to the process, for the message.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this is the process that created it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise if this is another process.

        Raises:
            FencedError: It is; nothing was changed.
        """
        if not self.is_this:
            raise FencedError(
                f"{self._what} belongs to process {self._pid}, and {os.getpid()} is its fork; nothing was "
                "written, committed or dropped here; begin an attempt in the process that writes"
            )


def leave_to_parent(inherited: object) -> None:
    """Keep an inherited object for ever: not even the end of the interpreter finalises it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
