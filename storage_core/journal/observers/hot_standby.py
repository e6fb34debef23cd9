"""PostgreSQL's hot standbys as observers: they replay the primary's log, and answer questions meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Final

from sqlalchemy import Boolean, func
from sqlalchemy.engine import URL

from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.observers.catch_up import reading_at_least
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp

PATIENCE_S: Final = 2
"""For a connection, and for a packet to arrive: a standby that is gone holds up no read for long."""

SILENCE_S: Final = 5
"""For an answer: nor does one that hangs."""


class HotStandby:
    """One standby server. It is connected to at the first reading, and never written.

    Args:
        url: As `parse_url` returns it.
        journal: Name of the journal.
        identity: Of the journal.
    """

    def __init__(self, url: URL, journal: str, identity: str) -> None:
        if "tcp_user_timeout" not in url.query:
            url = url.update_query_dict({"tcp_user_timeout": str(PATIENCE_S * 1000)})
        self._database = Database(url, busy_s=PATIENCE_S, silence_s=SILENCE_S)
        self._journal = journal
        self._identity = identity

    @property
    def name(self) -> str:
        """Its URL as people may see it, without a password."""
        return self._database.name

    def reading(self, stamps: Collection[Stamp]) -> AbstractContextManager[tuple[Reading, Stamp]]:
        """Read one state that holds these stamps; gives the state's own stamp, too.

        A standby that was promoted is no observer: nobody says that its history is the primary's.

        Raises:
            BehindError: It does not hold them yet.
            JournalUnavailableError: It cannot be reached, is a standby no more, or of another journal.
        """
        serves = func.pg_is_in_recovery(type_=Boolean)
        return reading_at_least(self._database, self._journal, self._identity, stamps, serves=serves)

    def close(self) -> None:
        """Give its connections back."""
        self._database.close()
