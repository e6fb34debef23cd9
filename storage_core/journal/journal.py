"""The journal: the one ordered record of service metadata, in SQLite or PostgreSQL.

    journal = open_journal("postgresql://lockgate@db/lockgate")
    written = journal.apply(TakeLease(resource="job:…", holder=…, purpose="write", soft_s=30, hard_s=120))
    written.stamp          # state id, generation stamp, lease token and attempt fence at once

Source: journal, "Store of record".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar

from sqlalchemy import Connection

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal.database.create_tables import ensure_tables
from lockgate.storage_core.journal.database.database import BUSY_S, Database, parse_url
from lockgate.storage_core.journal.database.driver_errors import TRANSACTION_TRIES
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.read.same_journal import Known, refuse_other_state
from lockgate.storage_core.journal.read.seen_stamps import SeenStamps
from lockgate.storage_core.journal.read.snapshot_read import Query, Reading, Status
from lockgate.storage_core.journal.write.acknowledged_head import AcknowledgedHead
from lockgate.storage_core.journal.write.group_commit import GroupCommit
from lockgate.storage_core.journal.write.head import Head, lock_head
from lockgate.storage_core.journal.write.mutation import Mutation, Refused, WriteOutcome, Written
from lockgate.storage_core.journal.write.restored_copy import notice_put_back
from lockgate.storage_core.journal.write.transaction import write
from lockgate.storage_core.journal.write.validation import check_values
from lockgate.storage_core.stamp import Stamp

T = TypeVar("T")

MAIN: Final = "main"
"""Name of a deployment's first journal."""


class Journal(Forkable):
    """One journal. Concurrent writes of several threads share a transaction.

    A forked process may keep using it: it opens new connections.

    Attributes:
        acknowledged: The file beside a SQLite journal that knows its newest acknowledged stamp.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        identity: str,
        *,
        clock: Clock | None = None,
        acknowledged: AcknowledgedHead | None = None,
    ) -> None:
        self.database = database
        self.name = name
        self.identity = identity
        self.acknowledged = acknowledged
        database.had_tables = True
        self.clock = clock or SystemClock()
        self.seen_stamps = SeenStamps(clock)
        self._group = GroupCommit(self._write)
        FORKS.register(self)

    @property
    def url(self) -> str:
        """URL of the database, without a password."""
        return self.database.name

    @property
    def known(self) -> Known:
        """What each transaction compares with the database before it changes or returns anything."""
        return Known(self.name, self.identity, self.seen_stamps.from_primary)

    @property
    def seen(self) -> Stamp:
        """The newest stamp that this process has seen. A state at least as new contains its own writes."""
        return self.seen_stamps.newest

    def see(self, stamp: Stamp) -> None:
        """Record a stamp that the primary returned."""
        self.seen_stamps.add_from_primary(stamp)

    def acknowledge(self, stamp: Stamp) -> None:
        """Record a stamp that is durable, before the caller gets it: see `AcknowledgedHead`."""
        if self.acknowledged is not None:
            self.acknowledged.record(self.identity, stamp)

    def apply(self, op: Op, request_id: str | None = None) -> Written:
        """Write one mutation and return its outcome.

        Args:
            op: The entry to write.
            request_id: The same for all tries of one request; by default a new id.

        Raises:
            LockgateError: It was refused; this is the error of `op.fold`.
            JournalUnavailableError: It was not applied.
            OutcomeUnknownError: No answer, even to a retry; it may have been applied.
        """
        mutation = Mutation(op=op) if request_id is None else Mutation(op=op, request_id=request_id)
        (outcome,) = self.write([mutation])
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome

    def write(self, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        """Write mutations and return an outcome for each; each is applied or refused by itself.

        A commit without an answer is retried with the same request ids, and so is a transaction that the
        database rolled back.

        Raises:
            InvalidInputError: Not every database can store a value; none was applied.
            JournalUnavailableError: None was applied.
            StateLostError: The database was replaced; none was applied.
            OutcomeUnknownError: No answer, even to a retry.
        """
        for mutation in mutations:
            check_values(mutation)
        unknown: OutcomeUnknownError | None = None

        def once() -> list[WriteOutcome]:
            nonlocal unknown
            try:
                return self._group.submit(mutations)
            except OutcomeUnknownError as error:
                unknown = error
                raise
            except NotAppliedError as error:
                if unknown is not None:
                    raise unknown from error  # this try was not applied; the one before it may have been
                raise

        outcomes = TRANSACTION_TRIES.call(once)
        # Not earlier: a token from before the commit could name an entry that is then rolled back.
        self.see(max((outcome.stamp for outcome in outcomes), default=Stamp()))
        return outcomes

    def status(self) -> Status:
        """Return the primary's status; the process has then seen everything written before."""
        with self.reading() as reading:
            status = reading.status()
        self.see(status.stamp)
        return status

    def msync(self) -> Stamp:
        """Return the primary's newest stamp; later reads include everything written before.

        It replaces all stamps seen before, also those that a failover or a restore has lost. Call it to
        continue after a `StateLostError`.

        Raises:
            StateLostError: The database was replaced, by another journal, by an older copy, or by a server
                that never had the newest epoch seen. Another failover or restore is no loss.
        """
        seen = self.seen_stamps.stamps
        stamp = self.status().stamp
        self.seen_stamps.replace(seen, stamp)
        return stamp

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Read one state of the primary.

        Raises:
            StateLostError: The database was replaced, by another journal or by an older copy.
        """
        self._hit("read.before")
        with self.database.snapshot() as connection:
            reading = Reading(connection, self.database, self.name)
            refuse_other_state(reading, self.known)
            yield reading
        self._hit("read.after")

    def read(self, query: Query[T]) -> T:
        """Run a query on one state of the primary; see `Reads`."""
        with self.reading() as reading:
            self.see(reading.status().stamp)
            return query(reading)

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def after_fork_in_child(self) -> None:
        """Forget what the parent's threads were about to write."""
        self._group.after_fork_in_child()
        self.seen_stamps.after_fork_in_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        self._hit("write.before")
        outcomes = write(self.database, self.known, mutations)
        self._hit("write.after")
        self.acknowledge(max((outcome.stamp for outcome in outcomes), default=Stamp()))
        return outcomes

    def _hit(self, point: str) -> None:
        FAILPOINTS.hit(f"{current_step()}.journal-{point}")


def open_journal(
    url: str, name: str = MAIN, *, clock: Clock | None = None, busy_s: float = BUSY_S
) -> Journal:
    """Open a journal; create it if it is missing.

    A SQLite file that was put back from a copy begins a new epoch, in safe mode.

    Args:
        url: `sqlite:////absolute/path` or `postgresql://user@host/database`.
        name: Name of the journal in that database.
        clock: Replaces the database's clock, for tests.
        busy_s: Timeout for locks and for connecting to PostgreSQL.

    Raises:
        InvalidInputError: The URL is invalid, or the database belongs to another program.
        JournalVersionError: The database has another version than this program.
        MalformedJournalError: The file is not SQLite, or is damaged.
        JournalUnavailableError: It cannot be reached or written, or is a standby.
    """
    database = Database(parse_url(url), clock=clock, busy_s=busy_s, is_primary=True)
    acknowledged = AcknowledgedHead(Path(database.url.database or ""), name) if database.is_sqlite else None
    try:
        identity = ensure_tables(database, name)
        if acknowledged is not None:
            notice_put_back(database, Known(name, identity), acknowledged)
        return Journal(database, name, identity, clock=clock, acknowledged=acknowledged)
    except BaseException:
        database.close()
        raise


@contextmanager
def maintenance(journal: Journal, verb: str) -> Iterator[tuple[Connection, Head]]:
    """Lock the head, so that no entry is written in the block; commit at its end.

    Args:
        journal: The journal to change.
        verb: Name of the failpoints before and after: `<step>.journal-<verb>.before`.

    Raises:
        JournalUnavailableError: Nothing was applied.
        StateLostError: The database was replaced; nothing was applied.
        OutcomeUnknownError: The commit got no answer.
    """
    point = f"{current_step()}.journal-{verb}"
    FAILPOINTS.hit(f"{point}.before")
    with journal.database.write() as connection:
        yield connection, lock_head(connection, journal.database, journal.known)
    FAILPOINTS.hit(f"{point}.after")
