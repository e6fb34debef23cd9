"""PostgreSQL hot standbys as observers."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Final

from sqlalchemy import Boolean, func
from sqlalchemy.engine import URL

from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.observers.catch_up import read_at_least
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp

PATIENCE_S: Final = 2
"""Timeout of a connection and of an unacknowledged packet, so that a dead standby does not delay reads."""

SILENCE_S: Final = 5
"""Timeout of an answer, so that a standby that hangs does not delay reads."""


class HotStandby:
    """One standby server, connected at the first read.

    Args:
        url: Result of `parse_url`.
        journal: Name of the journal.
        identity: Identity of the journal.
    """

    def __init__(self, url: URL, journal: str, identity: str) -> None:
        if "tcp_user_timeout" not in url.query:
            url = url.update_query_dict({"tcp_user_timeout": str(PATIENCE_S * 1000)})
        self._database = Database(url, busy_s=PATIENCE_S, silence_s=SILENCE_S)
        self._journal = journal
        self._identity = identity

    @property
    def name(self) -> str:
        """URL of the server, without a password."""
        return self._database.name

    def reading(self, stamps: Collection[Stamp]) -> AbstractContextManager[tuple[Reading, Stamp]]:
        """Yield one state that includes these stamps, and its own stamp.

        A promoted standby is refused, because its history may differ from the primary's.

        Raises:
            BehindError: It does not include them yet.
            JournalUnavailableError: It cannot be reached, was promoted, or holds another journal.
        """
        serves = func.pg_is_in_recovery(type_=Boolean)
        return read_at_least(self._database, self._journal, self._identity, stamps, serves=serves)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
