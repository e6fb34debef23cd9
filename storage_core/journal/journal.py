"""The journal: the one ordered record of service metadata, in SQLite or PostgreSQL.

    journal = open_journal("postgresql://lockgate@db/lockgate")
    written = journal.apply(TakeLease(resource="job:…", holder=…, purpose="write", soft_s=30, hard_s=120))
    written.stamp          # state id, generation stamp, lease token and attempt fence at once

Source: journal, "Store of record".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self, TypeVar

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS, current_step
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal.database.database import BUSY_S, Database, parse_url
from lockgate.storage_core.journal.database.migrate import bring_up_to_date
from lockgate.storage_core.journal.database.retry import tries
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.read.seen_stamps import Sight
from lockgate.storage_core.journal.read.snapshot_read import Reading, Status
from lockgate.storage_core.journal.write.group_commit import Group
from lockgate.storage_core.journal.write.mutation import Mutation, Refused, WriteOutcome, Written
from lockgate.storage_core.journal.write.transaction import write
from lockgate.storage_core.journal.write.validation import check_values
from lockgate.storage_core.stamp import Stamp

MAIN: Final = "main"
"""The name of a deployment's first journal; satellites have others."""

T = TypeVar("T")


class Journal(Forkable):
    """One journal, from one process. What threads write at once shares a transaction.

    A fork may go on with it: with connections of its own, and apart from its parent's threads.
    """

    def __init__(self, database: Database, name: str, identity: str, *, clock: Clock | None = None) -> None:
        self.database = database
        self.name = name
        self.identity = identity
        self.sight = Sight(clock)
        self._group = Group(lambda mutations: self._called("write", lambda: write(database, name, mutations)))
        FORKS.register(self)

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self.database.name

    @property
    def seen(self) -> Stamp:
        """The newest stamp that this process has seen: a read that is not older reads its own writes."""
        return self.sight.newest

    def see(self, stamp: Stamp) -> None:
        """Take note of a stamp of the primary's; an older one than is known already changes nothing."""
        self.sight.answered(stamp)

    def apply(self, op: Op, request_id: str | None = None) -> Written:
        """Write one mutation and return what came of it.

        Args:
            op: What to do.
            request_id: The same over all tries of one request; by default this call's own.

        Raises:
            LockgateError: It was refused: what `op.fold` raises.
            JournalUnavailableError: It was not applied.
            OutcomeUnknownError: No answer, even to a repetition; it may have been applied.
        """
        mutation = Mutation(op=op) if request_id is None else Mutation(op=op, request_id=request_id)
        (outcome,) = self.write([mutation])
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome

    def write(self, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        """Write mutations, each of which is applied or refused alone; returns an outcome for each.

        A commit without an answer is asked for again, under the same request ids; so is a transaction that
        the database took back.

        Raises:
            InvalidInputError: A value cannot be kept by every database; none was applied.
            JournalUnavailableError: None was applied.
            OutcomeUnknownError: No answer, even to a repetition.
        """
        for mutation in mutations:
            check_values(mutation)
        unknown: OutcomeUnknownError | None = None
        for attempt in tries():
            with attempt:
                try:
                    outcomes = self._group.submit(mutations)
                except OutcomeUnknownError as error:
                    unknown = error
                    raise
                except NotAppliedError as error:
                    if unknown is not None:
                        raise unknown from error  # this try was not applied; the one before it may have been
                    raise
        # Only now: a token taken before the transaction is durable may name an entry that never was.
        self.see(max((outcome.stamp for outcome in outcomes), default=Stamp()))
        return outcomes

    def status(self) -> Status:
        """Read where it stands, on the primary; the caller has then seen all that was written before."""
        with self.reading() as reading:
            status = reading.status()
        self.see(status.stamp)
        return status

    def msync(self) -> Stamp:
        """Learn the primary's newest stamp: what others have told of is then read, too.

        It takes the place of all that was seen before, also of what a failover or a restore has lost: whoever
        was told so by a `StateLostError` begins anew with this.
        """
        seen = self.sight.stamps
        stamp = self.status().stamp
        self.sight.settle(seen, stamp)
        return stamp

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Read one state, on the primary."""
        self._hit("read.before")
        with self.database.snapshot() as connection:
            yield Reading(connection, self.database, self.name)
        self._hit("read.after")

    def close(self) -> None:
        """Give its connections back."""
        self.database.close()

    def after_fork_in_child(self) -> None:
        """Go on in a child, without what the parent's threads were about to write."""
        self._group.after_fork_in_child()
        self.sight.after_fork_in_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _called(self, verb: str, call: Callable[[], T]) -> T:
        self._hit(f"{verb}.before")
        answer = call()
        self._hit(f"{verb}.after")
        return answer

    def _hit(self, point: str) -> None:
        FAILPOINTS.hit(f"{current_step()}.journal-{point}")


def open_journal(
    url: str, name: str = MAIN, *, clock: Clock | None = None, busy_s: float = BUSY_S
) -> Journal:
    """Open a journal; one that is not there yet is created, an older database is migrated first.

    Args:
        url: `sqlite:////absolute/path` or `postgresql://user@host/database`.
        name: Of the journal in that database.
        clock: Takes the place of the database's, for tests.
        busy_s: How long a lock, and a connection to PostgreSQL, are waited for.

    Raises:
        InvalidInputError: The URL cannot be, or names what is no journal's.
        JournalVersionError: The database is of a newer version than this program.
        MalformedJournalError: The file is not SQLite, or is damaged.
        JournalUnavailableError: It cannot be reached or written, or is a standby.
    """
    database = Database(parse_url(url), clock=clock, busy_s=busy_s, is_primary=True)
    try:
        return Journal(database, name, bring_up_to_date(database, name), clock=clock)
    except BaseException:
        database.close()
        raise
