"""The journal that the settings name: one in a process, shared by all that write to it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal.journal import Journal, open_journal
from lockgate.storage_core.journal.told import Told, travels_as
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp

SLOW_S: Final = 1.0
"""A journal that could not be opened, and took so long to say so, holds its askers up."""

REST_S: Final = 30.0
"""For so long nobody asks such a one again: a worker's every task would wait for it, twice."""


def configured_journal(settings: Settings, clock: Clock | None = None) -> Journal | None:
    """Return this process's journal, open; None where the settings say that there is none.

    It is shared and stays open: whoever asks does not close it. A fork opens one of its own.

    Args:
        settings: `journal_url` and `journal` count; without a URL it is SQLite below `home`.
        clock: Takes the place of the database's, for tests.

    Raises:
        InvalidInputError: The URL cannot be.
        JournalVersionError: The database is of a newer version than this program.
        JournalUnavailableError: It cannot be reached or written.
    """
    if not settings.has_journal:
        return None
    injected = None if type(clock) is SystemClock else clock
    return _OPENED.get(journal_url(settings), settings.journal, injected)


def journal_url(settings: Settings) -> str:
    """Return where the journal of these settings is."""
    return settings.journal_url or f"sqlite:///{settings.home_dir.absolute() / 'journal.db'}"


def close_journals() -> None:
    """Close what `configured_journal` has opened in this process; who asks again opens it anew."""
    _OPENED.close()


def seen_here() -> dict[str, tuple[Stamp, ...]]:
    """Return what this process has seen, or was told of, by `name@identity` of the journal; opens none."""
    return _OPENED.seen()


def tell_here(seen: Mapping[str, Collection[Stamp]]) -> None:
    """Take note of what another process has seen, for the journals that this one has open, or will open.

    Where another journal is open under the same name, as on a machine with one of its own, it is let be.

    Args:
        seen: As `seen_here` returned it there; a name alone is that of any journal so called.
    """
    _OPENED.tell(seen)


@dataclass(frozen=True)
class _Silent:
    """A journal that gave no answer, and until when it is not asked again."""

    until_s: float
    why: str


class _Opened:
    """The open journals of one process."""

    def __init__(self) -> None:
        self._journals: dict[tuple[str, str, int], Journal] = {}
        self._told = Told()
        self.forked()

    def forked(self) -> None:
        """Begin with none open: the parent's are the parent's, and so is whoever holds the lock.

        Of what the parent has seen its child was told.
        """
        self._told.forked()
        self._told.add(self.seen())
        self._journals = {}
        self._silent: dict[tuple[str, str], _Silent] = {}
        self._opening = threading.Lock()

    def get(self, url: str, name: str, clock: Clock | None) -> Journal:
        key = (url, name, id(clock))  # the journal keeps its clock: the id is no other's while it is open
        with self._opening:
            journal = self._journals.get(key)
            if journal is None:
                journal = self._journals[key] = self._open(url, name, clock)
                self._told.hand_over(journal)
            return journal

    def seen(self) -> dict[str, tuple[Stamp, ...]]:
        open_here = tuple(self._journals.values())
        return self._told.seen() | {travels_as(journal): journal.sight.stamps for journal in open_here}

    def tell(self, seen: Mapping[str, Collection[Stamp]]) -> None:
        self._told.add(seen)
        for journal in tuple(self._journals.values()):  # one that is opened just now takes it there
            self._told.hand_over(journal)

    def _open(self, url: str, name: str, clock: Clock | None) -> Journal:
        began_s = monotonic()
        silent = self._silent.get((url, name))
        if silent is not None and began_s < silent.until_s:
            raise JournalUnavailableError(
                f"{silent.why}; it is asked again in {silent.until_s - began_s:.0f} s"
            )
        try:
            return open_journal(url, name, clock=clock)
        except JournalUnavailableError as error:
            now_s = monotonic()
            if now_s - began_s >= SLOW_S:
                self._silent[url, name] = _Silent(now_s + REST_S, str(error))
            raise

    def close(self) -> None:
        with self._opening:
            journals, self._journals = self._journals, {}
            self._silent, self._told = {}, Told()
        for journal in journals.values():
            journal.close()


_OPENED: Final = _Opened()
os.register_at_fork(after_in_child=_OPENED.forked)
atexit.register(close_journals)
