"""The reading client that the settings describe."""

from __future__ import annotations

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.journal.database.database import parse_url
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.observers.client import Client
from lockgate.storage_core.journal.observers.hot_standby import HotStandby
from lockgate.storage_core.journal.observers.observer import Observer
from lockgate.storage_core.journal.observers.sqlite_replica import TailingObserver
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.journal.session_token import Token
from lockgate.storage_core.settings import Settings


def configured_reads(
    settings: Settings, *, at_least: str | None = None, clock: Clock | None = None
) -> Client | None:
    """Return a client that reads as the settings say; None where they say that there is no journal.

    Whoever asks closes it. The journal itself is the process's, and stays open.

    Args:
        settings: `observer_urls`, `observer_wait_ms`, `auto_msync_ms` and `always_primary` count, and which
            journal it is.
        at_least: A token, or a stamp of this journal, that the client must not fall behind: `--at-least`.
        clock: Takes the place of the machine's and the database's, for tests.

    Raises:
        InvalidInputError: A URL or the token cannot be.
        JournalVersionError: The database is of a newer version than this program.
        JournalUnavailableError: The primary cannot be reached.
    """
    token = Token.parse(at_least or "", settings.journal)
    journal = configured_journal(settings, clock)
    if journal is None:
        return None
    client = Client(
        journal,
        [open_observer(url, journal) for url in settings.observer_urls],
        wait_ms=settings.observer_wait_ms,
        auto_msync_ms=settings.auto_msync_ms,
        always_primary=settings.always_primary,
        clock=clock,
    )
    client.see(token)
    return client


def open_observer(url: str, journal: Journal) -> Observer:
    """Return an observer of a journal; it is reached for at the first reading.

    Args:
        url: `postgresql://…` of a hot standby, or `sqlite:////path` of a file that a `Tailer` writes.
        journal: The primary.

    Raises:
        InvalidInputError: It is neither.
    """
    parsed = parse_url(url)
    kind = TailingObserver if parsed.get_backend_name() == "sqlite" else HotStandby
    return kind(parsed, journal.name, journal.identity)
