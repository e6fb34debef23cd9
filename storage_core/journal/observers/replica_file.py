"""The file of an embedded observer, as its tailer writes it: rows, entries and head, in one transaction.

So it is at one state of the primary's, or at none, wherever the tailer is killed. It holds all but the ids of
requests whose entries were pruned: only writes ask for those. Entries from before the last copy are not in it
either, and its `pruned_sequence` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Table, bindparam, delete, func, insert, inspect, select, text, update

from lockgate.storage_core.errors import InvalidInputError, JournalVersionError, ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.journal.checkpoint.replay import replay
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.migrate import outdated, upgrade
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import (
    ENTRY,
    EPOCH,
    HEAD,
    OBSERVER_MARK,
    REQUEST,
    table_of,
)
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.read.epochs import read_epochs
from lockgate.storage_core.journal.read.snapshot_read import Entry, Reading, Status
from lockgate.storage_core.stamp import Stamp

LEASE: Final = table_of(Lease)
_FETCH: Final = 1000


def _copied() -> tuple[Table, ...]:
    return (HEAD, EPOCH, *(table_of(kind) for kind in known_families().rows))


class Renewal(msgspec.Struct, frozen=True):
    """A lease that was renewed, which no entry says."""

    resource: str
    stamp: Stamp
    renewed_s: float


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the primary found, all of one state.

    Attributes:
        status: Of the primary.
        entries: The next ones, without a gap; not always up to the newest.
        renewals: Only where the entries reach the newest: before that, the leases may still be others'.
    """

    status: Status
    entries: Sequence[Entry] = ()
    renewals: Sequence[Renewal] = ()


class Mirror:
    """One journal's copy in an observer's file.

    Args:
        database: The file's; nobody but tailers writes there.
        journal: Name of the journal.
    """

    def __init__(self, database: Database, journal: str) -> None:
        self.database = database
        self._journal = journal

    def prepare(self) -> None:
        """Make the tables, unless they are there. A copy of another version is thrown away, being a copy.

        Raises:
            InvalidInputError: The file is no observer's; nothing was changed.
            JournalUnavailableError: It cannot be written.
        """
        with self._writing() as connection:
            is_observer = connection.execute(text("PRAGMA application_id")).scalar() == OBSERVER_MARK
            names = inspect(connection).get_table_names()
            if names and not is_observer:
                raise InvalidInputError(
                    f"{self.database.name} is no observer's file: nothing was changed; name a new one"
                )
            if names and self._is_of_this_version(connection):
                return
            for name in names:
                connection.execute(text(f'DROP TABLE "{name}"'))
            upgrade(connection, self.database)
            connection.execute(text(f"PRAGMA application_id = {OBSERVER_MARK}"))

    def status(self) -> Status | None:
        """Return where the copy stands, None before the first."""
        with self.database.snapshot() as connection:
            return self._status(connection)

    def replace(self, at: Status | None, source: Reading) -> None:
        """Take over all that one state of the primary holds.

        Args:
            at: Where the copy stood when that was decided; if it does no more, another tailer was faster.
            source: Of the state.
        """
        with self._writing() as connection:
            if self._status(connection) != at:
                return
            for table in (*_copied(), ENTRY, REQUEST):
                connection.execute(delete(table).where(table.c.journal == self._journal))
            for table in _copied():
                question = select(table).where(table.c.journal == self._journal)
                found = source.connection.execute(question.execution_options(yield_per=_FETCH))
                for some in found.mappings().partitions():
                    connection.execute(insert(table), [dict(row) for row in some])
            mine = update(HEAD).where(HEAD.c.journal == self._journal)
            connection.execute(mine.values(pruned_sequence=HEAD.c.sequence))

    def follow(self, at: Status, news: News) -> Status | None:
        """Fold what is new.

        Args:
            at: Where the copy stood when the news were read; if it does no more, another tailer was faster.
            news: From there on, of the same epoch.

        Returns:
            Where the copy stands now, None if that was another tailer's doing.

        Raises:
            MalformedJournalError: The entries do not follow from what is here; nothing was changed.
        """
        with self._writing() as connection:
            if self._status(connection) != at:
                return None
            if news.entries:
                replay(
                    SqlRows(connection, self._journal), news.entries, read_epochs(self._reading(connection))
                )
                entries = [{"journal": self._journal, **msgspec.structs.asdict(e)} for e in news.entries]
                connection.execute(insert(ENTRY), entries)
            if news.renewals:
                connection.execute(_RENEW, [self._renewed(renewal) for renewal in news.renewals])
            return self._move_head(connection, at, news)

    def _move_head(self, connection: Connection, at: Status, news: News) -> Status:
        sequence = news.entries[-1].sequence if news.entries else at.stamp.sequence
        pruned = max(at.pruned_sequence, min(sequence, news.status.pruned_sequence))
        if pruned > at.pruned_sequence:
            gone = delete(ENTRY).where(ENTRY.c.journal == self._journal, ENTRY.c.sequence <= pruned)
            connection.execute(gone)
        # What no entry says is true of the newest state only.
        says = news.status if sequence == news.status.stamp.sequence else at
        moved = msgspec.structs.replace(says, stamp=Stamp(at.stamp.epoch, sequence), pruned_sequence=pruned)
        connection.execute(
            _MOVE_HEAD,
            {
                "of_journal": self._journal,
                "now_sequence": sequence,
                "now_pruned": pruned,
                "now_safe_since_s": moved.safe_since_s,
                "now_safe_reason": moved.safe_reason,
                "now_requests_since_s": moved.requests_since_s,
            },
        )
        return moved

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        step = current_step()
        FAILPOINTS.hit(f"{step}.observer-write.before")
        with self.database.write() as connection:
            yield connection
            FAILPOINTS.hit(f"{step}.observer-commit.before")
        FAILPOINTS.hit(f"{step}.observer-write.after")

    def _status(self, connection: Connection) -> Status | None:
        try:
            return self._reading(connection).status()
        except ObjectNotFoundError:
            return None

    def _reading(self, connection: Connection) -> Reading:
        return Reading(connection, self.database, self._journal)

    def _is_of_this_version(self, connection: Connection) -> bool:
        try:
            return not outdated(connection, self.database)
        except JournalVersionError:
            return False

    def _renewed(self, renewal: Renewal) -> dict[str, Any]:
        return {
            "of_journal": self._journal,
            "of_resource": renewal.resource,
            "of_epoch": renewal.stamp.epoch,
            "of_sequence": renewal.stamp.sequence,
            "now_renewed_s": renewal.renewed_s,
        }


_RENEW: Final = (
    update(LEASE)
    .where(
        LEASE.c.journal == bindparam("of_journal"),
        LEASE.c.resource == bindparam("of_resource"),
        LEASE.c.epoch == bindparam("of_epoch"),
        LEASE.c.sequence == bindparam("of_sequence"),
    )
    .values(renewed_s=func.max(LEASE.c.renewed_s, bindparam("now_renewed_s")))
)

_MOVE_HEAD: Final = (
    update(HEAD)
    .where(HEAD.c.journal == bindparam("of_journal"))
    .values(
        sequence=bindparam("now_sequence"),
        pruned_sequence=bindparam("now_pruned"),
        safe_since_s=bindparam("now_safe_since_s"),
        safe_reason=bindparam("now_safe_reason"),
        requests_since_s=bindparam("now_requests_since_s"),
    )
)
