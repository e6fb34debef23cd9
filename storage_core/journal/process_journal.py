"""The journal that the settings name: one for each process, shared by all callers.

`inject` and `extract` send the stamps that a process has seen to others, in the headers of a request, message
or response, so that their reads are at least as new:

    httpx.get(url, headers=inject())      # client side
    extract(request.headers)              # server side, before the first read

Neither opens a journal. Stamps of a journal that is not open yet take effect when it is opened.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import InvalidInputError, JournalUnavailableError
from lockgate.storage_core.journal.journal import Journal, open_journal
from lockgate.storage_core.journal.read.seen_stamps import SeenStamps
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER, SessionToken
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

LOG: Final = logging.getLogger("lockgate.journal")

SLOW_S: Final = 1.0
"""A failed open that takes this long delays every caller."""

REST_S: Final = 30.0
"""Callers fail at once for this long after a slow failure. Otherwise each task would wait for it, twice."""


def configured_journal(settings: Settings, clock: Clock | None = None) -> Journal | None:
    """Return this process's open journal, None if the settings disable it.

    It is shared and stays open: callers do not close it. A forked process opens its own.

    Raises:
        InvalidInputError: The URL is invalid.
        JournalVersionError: The database has another version than this program.
        JournalUnavailableError: It cannot be reached or written.
    """
    if not settings.has_journal:
        return None
    injected = None if type(clock) is SystemClock else clock
    return _OPENED.get(journal_url(settings), settings.journal, injected)


def journal_url(settings: Settings) -> str:
    """Return the URL of the settings' journal."""
    return settings.journal_url or f"sqlite:///{settings.home_dir.absolute() / 'journal.db'}"


def close_journals() -> None:
    """Close the journals that `configured_journal` has opened; the next call opens them again."""
    _OPENED.close()


def process_stamps() -> dict[str, tuple[Stamp, ...]]:
    """Return the stamps that this process has seen or received, by `name@identity` of the journal."""
    return _OPENED.stamps()


def receive_stamps(stamps: Mapping[str, Collection[Stamp]]) -> None:
    """Add stamps that another process has seen to the journals that are open here, or will be.

    Stamps of another journal with the same name, such as another machine's own, are ignored.

    Args:
        stamps: Result of `process_stamps` there; a name without an identity means any journal of that name.
    """
    _OPENED.receive(stamps)


def token_name(journal: Journal) -> str:
    """Return the journal's name in tokens, with the identity: each machine may have its own `main`."""
    return f"{journal.name}@{journal.identity}"


def inject() -> dict[str, str]:
    """Return the header with the stamps that this process has seen; empty if it has seen none."""
    token = str(SessionToken({name: stamps for name, stamps in process_stamps().items() if stamps}))
    return {AT_LEAST_HEADER: token} if token else {}


def extract(headers: Mapping[str, Any]) -> None:
    """Make later reads at least as new as the sender has seen; ignore a malformed token with a warning.

    The stamps take effect in the whole process: accept them only from senders that may write to the journal.

    Args:
        headers: Headers of a message, or an XCom value; the case of the name does not matter.
    """
    try:
        token = SessionToken.from_headers(headers)
    except InvalidInputError as error:
        LOG.warning(
            "%s: %s; it is ignored: a read may be older than what its sender has seen", AT_LEAST_HEADER, error
        )
        return
    receive_stamps(token.stamps)


class ReceivedStamps:
    """Stamps received for journals that are not open yet, by `name@identity` or by name only."""

    def __init__(self) -> None:
        self._stamps: dict[str, SeenStamps] = {}
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Keep the stamps and replace the locks, which a thread of the parent may hold."""
        self._lock = threading.Lock()
        for stamps in self._stamps.values():
            stamps.after_fork_in_child()

    def add(self, received: Mapping[str, Collection[Stamp]]) -> None:
        """Add stamps that another process has seen."""
        with self._lock:
            for name, stamps in received.items():
                known = self._stamps.setdefault(name, SeenStamps())
                for stamp in stamps:
                    known.add(stamp)

    def all(self) -> dict[str, tuple[Stamp, ...]]:
        """Return the stamps that no journal has taken."""
        with self._lock:
            return {name: known.stamps for name, known in self._stamps.items()}

    def move_to(self, journal: Journal) -> None:
        """Move an open journal's stamps to it; delete those of other journals with its name."""
        names, same_name = {journal.name, token_name(journal)}, f"{journal.name}@"
        with self._lock:
            for name in tuple(self._stamps):
                if name in names:
                    for stamp in self._stamps.pop(name).stamps:
                        journal.seen_stamps.add(stamp)
                elif name.startswith(same_name):
                    del self._stamps[name]


@dataclass(frozen=True)
class _Unavailable:
    """A journal that could not be opened, and until when it is not tried again."""

    until_s: float
    why: str


class _Opened:
    """The open journals of one process."""

    def __init__(self) -> None:
        self._journals: dict[tuple[str, str, int], Journal] = {}
        self._received = ReceivedStamps()
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Start without journals and with a new lock; keep the stamps that the parent has seen."""
        self._received.after_fork_in_child()
        self._received.add(self.stamps())
        self._journals = {}
        self._unavailable: dict[tuple[str, str], _Unavailable] = {}
        self._opening = threading.Lock()

    def get(self, url: str, name: str, clock: Clock | None) -> Journal:
        key = (url, name, id(clock))  # the journal keeps its clock, so the id is unique while it is open
        with self._opening:
            journal = self._journals.get(key)
            if journal is None:
                journal = self._journals[key] = self._open(url, name, clock)
                self._received.move_to(journal)
            return journal

    def stamps(self) -> dict[str, tuple[Stamp, ...]]:
        # Received stamps first: `get` inserts a journal before it moves that journal's received stamps to it.
        stamps = {name: set(received) for name, received in self._received.all().items()}
        for journal in tuple(self._journals.values()):
            stamps.setdefault(token_name(journal), set()).update(journal.seen_stamps.stamps)
        return {name: tuple(sorted(seen)) for name, seen in stamps.items()}

    def receive(self, stamps: Mapping[str, Collection[Stamp]]) -> None:
        self._received.add(stamps)
        for journal in tuple(self._journals.values()):  # a journal that is being opened takes them in `get`
            self._received.move_to(journal)

    def _open(self, url: str, name: str, clock: Clock | None) -> Journal:
        began_s = monotonic()
        failure = self._unavailable.get((url, name))
        if failure is not None and began_s < failure.until_s:
            raise JournalUnavailableError(
                f"{failure.why}; it is asked again in {failure.until_s - began_s:.0f} s"
            )
        try:
            return open_journal(url, name, clock=clock)
        except JournalUnavailableError as error:
            now_s = monotonic()
            if now_s - began_s >= SLOW_S:
                self._unavailable[url, name] = _Unavailable(now_s + REST_S, str(error))
            raise

    def close(self) -> None:
        with self._opening:
            journals, self._journals = self._journals, {}
            self._unavailable, self._received = {}, ReceivedStamps()
        for journal in journals.values():
            journal.close()


_OPENED: Final = _Opened()
os.register_at_fork(after_in_child=_OPENED.after_fork_in_child)
atexit.register(close_journals)
