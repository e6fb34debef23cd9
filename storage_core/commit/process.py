"""The process that something belongs to, told from that process's forks."""

from __future__ import annotations

import os

from lockgate.storage_core.errors import FencedError


class OwnProcess:
    """The process that made this; its forks are others.

    A fork has a copy of everything but the threads: who waits for one of those there waits for ever, and
    what the copy drops or commits is its parent's.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this is that process."""
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
