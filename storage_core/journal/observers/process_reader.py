"""Open the reading client that the settings describe."""

from __future__ import annotations

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.database.database import parse_url
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.observers.hot_standby import HotStandby
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.process_journal import configured_journal, receive_stamps, token_name
from lockgate.storage_core.journal.session_token import SessionToken
from lockgate.storage_core.settings import Settings


def configured_reads(
    settings: Settings, *, at_least: str | None = None, clock: Clock | None = None
) -> Client | None:
    """Return a client for the settings' journal and observers, None if the journal is disabled.

    The caller closes it. The journal is shared by the process and stays open.

    Args:
        settings: Uses `observer_urls`, `observer_wait_ms`, `auto_msync_ms`, `always_primary` and the
            journal's.
        at_least: Token, or stamp of this journal, that reads must include: `--at-least`.
        clock: Replaces the machine's and the database's clock, for tests.

    Raises:
        InvalidInputError: A URL or the token is invalid, or the token is of another deployment.
        JournalVersionError: The database has another version than this program.
        JournalUnavailableError: The primary cannot be reached.
    """
    token = SessionToken.parse(at_least or "", settings.journal)
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
    _refuse_other_deployment(token, journal)
    receive_stamps(token.stamps)  # also of the other journals, which may be opened later
    client.see(token)
    return client


def _refuse_other_deployment(token: SessionToken, journal: Journal) -> None:
    own = token_name(journal)
    for name in token.stamps:
        if name.startswith(f"{journal.name}@") and name != own:
            raise InvalidInputError(
                f"the token is of another deployment: its journal is {name[:140]}, and that of this "
                f"one is {own}; nothing was read; read without the token, or correct LOCKGATE_JOURNAL_URL"
            )


def open_observer(url: str, journal: Journal) -> HotStandby:
    """Return an observer of a journal. It connects at the first read.

    Raises:
        InvalidInputError: The URL is not one of PostgreSQL.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        raise InvalidInputError(
            f"observer {url}: only PostgreSQL hot standbys are observers; nothing was read; remove it from "
            "LOCKGATE_OBSERVER_URLS: readers of a SQLite journal do not wait for its writer"
        )
    return HotStandby(parsed, journal.name, journal.identity)
