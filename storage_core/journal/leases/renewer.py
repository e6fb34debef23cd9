"""One thread per holder renews all that the holder holds, in one statement."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from typing import Final, Protocol

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import FencedError, LockgateError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.stamp import Stamp

RENEWER: Final = "lockgate-renewer"
"""Name of the thread."""


def new_holder() -> str:
    """Return a fresh name of a holder."""
    return secrets.token_hex(16)


class Renewing(Protocol):
    """Renews leases: `Leases` of a journal, or a service that asks them."""

    def renew(self, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
        """Renew all that a holder holds, stamps by resource; returns a word about each that is lost."""


class Renewer(Forkable):
    """Renews a holder's leases until they are dropped or lost.

    A fork is another holder, and holds nothing: if it renewed its parent's leases, they outlived the parent.

    Args:
        leases: Of a journal, here or behind a service.
        every_s: Between two renewals.
        clock: Waits; the machine's by default.
    """

    def __init__(self, leases: Renewing, *, every_s: float, clock: Clock | None = None) -> None:
        self._leases = leases
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Begin as a new holder."""
        self.holder = new_holder()
        self._held: dict[str, Stamp] = {}
        self._renewed_s: dict[str, float] = {}
        self._lost: dict[str, FencedError] = {}
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, resource: str, stamp: Stamp, *, since_s: float) -> None:
        """Renew this lease, too, from now on.

        Args:
            resource: Taken in the name of `holder`.
            stamp: With which it was taken.
            since_s: When it was asked for, by this process's clock.
        """
        with self._changing:
            self._held[resource] = stamp
            self._renewed_s[resource] = since_s
            self._lost.pop(resource, None)
            if self._thread is None:
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._renew_often, args=(self._ended,), name=RENEWER, daemon=True
                )
                self._thread.start()

    def drop(self, resource: str) -> None:
        """Renew it no more; the thread ends with the last one."""
        with self._changing:
            self._held.pop(resource, None)
            ended = None if self._held else self._thread
            if ended is not None:
                self._ended.set()
                self._thread = None
        if ended is not None and ended is not threading.current_thread():
            ended.join()

    def close(self) -> None:
        """Renew nothing any more: what is held lapses."""
        for resource in tuple(self._held):
            self.drop(resource)

    def check(self, resource: str, within_s: float) -> None:
        """Raise if the lease is lost; renew it now unless it was renewed within so many seconds.

        Raises:
            FencedError: It is lost.
            JournalUnavailableError: It could not be renewed now.
        """
        with self._changing:
            age_s = self._clock.now_s() - self._renewed_s.get(resource, 0.0)
            self._refuse_lost(resource)
        if not 0 <= age_s < within_s:  # below 0 the clock was put back: nobody knows how old it is
            self.renew()
            with self._changing:
                self._refuse_lost(resource)

    def renew(self) -> None:
        """Renew all that is held, now."""
        with self._changing:
            held = dict(self._held)
        began_s = self._clock.now_s()  # before the call: a slow answer must not make a lease look younger
        lost = self._leases.renew(self.holder, held)
        with self._changing:
            for resource, stamp in held.items():
                if self._held.get(resource) == stamp and resource not in lost:
                    self._renewed_s[resource] = began_s
            for resource, words in lost.items():
                if self._held.get(resource) == held[resource]:
                    self._lost[resource] = FencedError(words)
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
                continue  # the next renewal may pass; if none does, the leases lapse and others see it
