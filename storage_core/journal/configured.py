"""The journal that the settings name: one in a process, shared by all that write to it."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Final

from storage_core.clock import Clock, SystemClock
from storage_core.journal.journal import Journal, open_journal
from storage_core.settings import Settings


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
    injected = None if isinstance(clock, SystemClock) else clock
    return _OPENED.get(journal_url(settings), settings.journal, injected)


def journal_url(settings: Settings) -> str:
    """Return where the journal of these settings is."""
    return settings.journal_url or f"sqlite:///{settings.home_dir.absolute() / 'journal.db'}"


def close_journals() -> None:
    """Close what `configured_journal` has opened in this process; who asks again opens it anew."""
    _OPENED.close()


class _Opened:
    """The open journals of one process."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin with none open: the parent's are the parent's, and so is whoever holds the lock."""
        self._journals: dict[tuple[str, str, int], Journal] = {}
        self._opening = threading.Lock()

    def get(self, url: str, name: str, clock: Clock | None) -> Journal:
        key = (url, name, id(clock))  # the journal keeps its clock: the id is no other's while it is open
        with self._opening:
            journal = self._journals.get(key)
            if journal is None:
                journal = self._journals[key] = open_journal(url, name, clock=clock)
            return journal

    def close(self) -> None:
        with self._opening:
            journals, self._journals = self._journals, {}
        for journal in journals.values():
            journal.close()


_OPENED: Final = _Opened()
os.register_at_fork(after_in_child=_OPENED.forked)
atexit.register(close_journals)
