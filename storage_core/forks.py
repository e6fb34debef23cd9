"""Fork safety: a child process does not touch its parent's connections and opens new ones.

A child must not use, close or finalise an inherited connection: on PostgreSQL that would end the parent's
session, on SQLite roll back its transaction. SQLite also keeps process-wide state about locked files, which
is wrong in a child. All SQLite connections are therefore closed before a fork. An open transaction prevents
that, so a fork waits briefly for those of other threads and blocks new ones meanwhile; the child of a fork
during a transaction may not use SQLite.

A child never collects the garbage that it inherits: a connection in it may be one that a thread of the parent
was closing, with SQLite's mutex locked.

Source: "How To Corrupt An SQLite Database File", section 2.6.
"""

from __future__ import annotations

import concurrent.futures.thread
import ctypes
import gc
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lockgate.storage_core.errors import FencedError

PATIENCE_S: Final = 2.0
"""Maximum time for which a fork waits for transactions of other threads."""


class Forkable(ABC):
    """An object with state that a child process must not use: connections, threads, locks."""

    def before_fork(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what a child must not inherit; does nothing by default."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Reset the state in a child, where the parent's threads and the locks they held are gone."""


class Forks:
    """The fork hooks of a process.

    Attributes:
        is_tainted: Whether this process was forked while a transaction on SQLite was open.
    """

    def __init__(self) -> None:
        self.is_tainted = False
        self._forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._was_quiet = True
        self._collects = False
        self._reset()

    def register(self, forkable: Forkable) -> None:
        """Call the object's hooks at every fork from now on."""
        with self._changed:
            self._forkables.add(forkable)

    @contextmanager
    def sqlite_transaction(self) -> Iterator[None]:
        """Mark an open SQLite transaction. Blocks during a fork, except in a thread that has one open."""
        changed, thread, transaction = self._changed, threading.get_ident(), object()
        with changed:
            changed.wait_for(lambda: not self._is_forking or thread in self._open.values())
            self._open[transaction] = thread
        try:
            yield
        finally:
            if changed is self._changed:  # it differs in a child
                with changed:
                    del self._open[transaction]
                    changed.notify_all()

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Let no fork begin during the block, which must be short."""
        with self._changed:
            yield

    def before(self) -> None:
        """Wait for open transactions, then call `before_fork` of all objects. Keeps the lock."""
        thread = threading.get_ident()
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._is_forking)  # another thread may be forking
        self._is_forking = True
        self._changed.wait_for(lambda: {*self._open.values()} <= {thread}, PATIENCE_S)
        self._was_quiet = not self._open
        self._collects = gc.isenabled()
        gc.disable()  # until the child has frozen what it inherits
        for forkable in self._forkables:
            forkable.before_fork()

    def after_in_parent(self) -> None:
        """Release the lock, so that transactions may begin again."""
        if self._collects:
            gc.enable()
        self._is_forking = False
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Call `after_fork_in_child` of all objects, and never collect what was inherited."""
        gc.freeze()
        if self._collects:
            gc.enable()
        self._reset()
        self.is_tainted = self.is_tainted or not self._was_quiet
        for forkable in self._forkables:
            forkable.after_fork_in_child()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[object, int] = {}  # the thread of each transaction
        self._is_forking = False


FORKS: Final = Forks()
"""Fork hooks of this process."""

# The hooks of these modules take locks and must be registered first. Hooks before a fork run in reverse
# order: a transaction that needs such a lock could not end while the fork waits for it.
_REGISTERED_EARLIER: Final = (concurrent.futures.thread, logging)

os.register_at_fork(
    before=FORKS.before, after_in_parent=FORKS.after_in_parent, after_in_child=FORKS.after_in_child
)


class ForkGuard:
    """Detects the use of an object in a fork of the process that created it.

    A fork copies everything except threads: waiting for one of them would never end, and a commit or clean-up
    by the copy would affect the parent's data.

    Args:
        what: Name of the object, for the message.
        remedy: What the fork can do instead, for the message.
    """

    def __init__(self, what: str, *, remedy: str = "begin an attempt in the process that writes") -> None:
        self._what = what
        self._remedy = remedy
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this process created the guard."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Check that this process created the guard.

        Raises:
            FencedError: It did not; nothing was changed.
        """
        if not self.is_this:
            raise FencedError(
                f"{self._what} belongs to process {self._pid}, and {os.getpid()} is its fork; nothing was "
                f"written, committed or dropped here; {self._remedy}"
            )


def leave_to_parent(inherited: object) -> None:
    """Keep an inherited object alive forever: not even interpreter shutdown finalises it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
