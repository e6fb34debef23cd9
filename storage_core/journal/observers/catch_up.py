"""Read a state only if it includes the stamps that a client has seen, checked in the same snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement, select, true

from lockgate.storage_core.errors import JournalUnavailableError, NotAppliedError
from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.schema import HEAD
from lockgate.storage_core.journal.read.epochs import read_epochs, survived
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp


class BehindError(NotAppliedError):
    """A state does not include what the client has seen: it is older, or of another branch of history.

    It does not leave the reading client, which tries another server or raises `StateLostError`.
    """


class OtherJournalError(JournalUnavailableError):
    """A database holds another journal than the client's."""


@contextmanager
def read_at_least(
    database: Database,
    journal: str,
    identity: str,
    stamps: Collection[Stamp],
    *,
    serves: ColumnElement[bool] | None = None,
) -> Iterator[tuple[Reading, Stamp]]:
    """Yield one state that includes these stamps, and its own stamp.

    Args:
        database: Database of the primary or of an observer.
        journal: Name of the journal.
        identity: Identity of the client's journal.
        stamps: Stamps that the client has seen.
        serves: Condition, in the same statement, that the database still has the role the client expects.

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
