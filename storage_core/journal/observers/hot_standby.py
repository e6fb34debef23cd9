"""PostgreSQL hot standbys as observers, which serve a state only if it includes what the client has seen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from sqlalchemy import Boolean, ColumnElement, func, select, true
from sqlalchemy.engine import URL

from lockgate.storage_core.errors import JournalUnavailableError, NotAppliedError
from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.schema import HEAD
from lockgate.storage_core.journal.read.snapshot_read import Reading, read_epochs, survived
from lockgate.storage_core.stamp import Stamp

PATIENCE_S: Final = 2
"""Timeout of a connection and of an unacknowledged packet, so that a dead standby does not delay reads."""

SILENCE_S: Final = 5
"""Timeout of an answer, so that a standby that hangs does not delay reads."""


class BehindError(NotAppliedError):
    """A state does not include what the client has seen: it is older, or of another branch of history.

    It does not leave the reading client, which tries another server or raises `StateLostError`.
    """


class OtherJournalError(JournalUnavailableError):
    """A database holds another journal than the client's."""


class HotStandby:
    """One standby server, connected at the first read."""

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


@contextmanager
def read_at_least(
    database: Database,
    journal: str,
    identity: str,
    stamps: Collection[Stamp],
    *,
    serves: ColumnElement[bool] | None = None,
) -> Iterator[tuple[Reading, Stamp]]:
    """Yield one state that includes these stamps, and its own stamp, while the database still serves so.

    Raises:
        BehindError: The state does not include them; nothing was read.
        OtherJournalError: It holds another journal.
        JournalUnavailableError: It cannot be reached, or does not serve.
    """
    point = f"{current_step()}.journal-read"
    FAILPOINTS.hit(f"{point}.before")
    with database.snapshot() as connection:
        # The first statement takes the snapshot. After an earlier check the state could have been replaced,
        # and a check on another connection could see a newer state than the one read here.
        reading = Reading(connection, database, journal)
        yield reading, _reached(reading, identity, stamps, true() if serves is None else serves)
    FAILPOINTS.hit(f"{point}.after")


def _reached(
    reading: Reading, identity: str, stamps: Collection[Stamp], serves: ColumnElement[bool]
) -> Stamp:
    question = select(HEAD.c.identity, HEAD.c.epoch, HEAD.c.sequence, serves.label("serves"))
    head = reading.connection.execute(question.where(HEAD.c.journal == reading.journal)).one_or_none()
    where = f"journal {reading.database.name}"
    if head is None:
        raise BehindError(f"{where} holds nothing yet of {reading.journal!r}")
    if head.identity != identity:
        raise OtherJournalError(
            f"{where} holds another journal (identity {head.identity}, not {identity}): it is not read; see "
            "LOCKGATE_OBSERVER_URLS and LOCKGATE_JOURNAL"
        )
    if not head.serves:
        raise JournalUnavailableError(
            f"{where} follows no primary any more: it was promoted; name it as the primary "
            "(LOCKGATE_JOURNAL_URL), or stop it"
        )
    newest = Stamp(head.epoch, head.sequence)
    if any(stamp > newest for stamp in stamps):
        raise BehindError(f"{where} is at {newest}, and {max(stamps)} was seen")
    if any(stamp.epoch < newest.epoch for stamp in stamps):
        epochs = read_epochs(reading)
        for stamp in stamps:
            if not survived(epochs, stamp):
                raise BehindError(f"{where} is at {newest}, in a history without {stamp}, which was seen")
    return newest
