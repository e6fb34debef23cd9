"""Renew all leases of a holder from one background thread."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import FencedError, LockgateError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stamp import Stamp

RENEWER: Final = "lockgate-renewer"
"""Name of the thread."""


def new_holder() -> str:
    """Return a new, random name of a holder."""
    return secrets.token_hex(16)


Renew = Callable[[str, Mapping[str, Stamp]], Mapping[str, str]]
"""Renews all leases of a holder, given as stamps by resource; returns a message for each lost one."""


class Renewer(Forkable):
    """Renews a holder's leases until they are dropped or lost.

    A forked process is a new holder without leases: if it renewed its parent's, they would outlive the
    parent.
    """

    def __init__(self, renew: Renew, *, every_s: float, clock: Clock | None = None) -> None:
        self._renew = renew
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Start as a new holder."""
        self.holder = new_holder()
        self._held: dict[str, Stamp] = {}
        self._renewed_s: dict[str, float] = {}
        self._lost: dict[str, FencedError] = {}
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, resource: str, stamp: Stamp, *, since_s: float) -> None:
        """Add a lease to those renewed."""
        with self._changing:
            self._held[resource] = stamp
            self._renewed_s[resource] = since_s
            self._lost.pop(resource, None)
            if self._thread is None:
                self._ended = threading.Event()
                thread = threading.Thread(
                    target=self._renew_often, args=(self._ended,), name=RENEWER, daemon=True
                )
                thread.start()
                self._thread = thread

    def drop(self, resource: str, stamp: Stamp | None = None) -> None:
        """Stop renewing a lease, only the one of this stamp if any; the thread ends with the last."""
        with self._changing:
            if stamp in {None, self._held.get(resource)}:
                self._held.pop(resource, None)
            ended = None if self._held else self._thread
            if ended is not None:
                self._ended.set()
                self._thread = None
        if ended is not None and ended is not threading.current_thread():
            ended.join()

    def close(self) -> None:
        """Stop renewing; all leases lapse."""
        for resource in tuple(self._held):
            self.drop(resource)

    def check(self, resource: str, within_s: float) -> None:
        """Raise if the lease is lost. Renew it first if its last renewal is older than `within_s`.

        Raises:
            FencedError: It is lost.
            JournalUnavailableError: It could not be renewed now.
        """
        with self._changing:
            age_s = self._clock.monotonic_s() - self._renewed_s.get(resource, float("-inf"))
            self._refuse_lost(resource)
        if age_s >= within_s:
            self.renew()
            with self._changing:
                self._refuse_lost(resource)

    def renew(self) -> None:
        """Renew all held leases now."""
        with self._changing:
            held = dict(self._held)
        began_s = self._clock.monotonic_s()  # before the call: a slow answer makes no lease look newer
        lost = self._renew(self.holder, held)
        with self._changing:
            for resource, stamp in held.items():
                if self._held.get(resource) == stamp and resource not in lost:
                    self._renewed_s[resource] = began_s
            for resource, message in lost.items():
                if self._held.get(resource) == held[resource]:
                    self._lost[resource] = FencedError(message)
                    del self._held[resource]

    def _refuse_lost(self, resource: str) -> None:
        if resource in self._lost:
            raise self._lost[resource]
        if resource not in self._held:
            raise FencedError(
                f"{resource}: this process does not hold its lease: it gave it up, or is a fork of the one "
                "that does; stop, and change nothing more"
            )

    def _renew_often(self, ended: threading.Event) -> None:
        while not self._clock.wait(ended, self._every_s):
            try:
                self.renew()
            except LockgateError:
                continue  # the next renewal may succeed; otherwise the leases lapse
