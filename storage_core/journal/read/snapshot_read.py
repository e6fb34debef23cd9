"""Read one state of a journal, on the primary or on an observer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, Select, bindparam, select, text

from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import MalformedJournalError, ObjectNotFoundError
from lockgate.storage_core.journal.database.bulk import JOURNAL
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.pipeline import Statement, execute_pipelined
from lockgate.storage_core.journal.database.row_access import SqlRows, columns_of, rows_of
from lockgate.storage_core.journal.database.schema import ENTRY, EPOCH, HEAD, SAFE_REASON
from lockgate.storage_core.journal.entries.lease_entries import Lease, LeaseState, state_of
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.read.row_paths import Tree, below_path, on_path, parameters
from lockgate.storage_core.stamp import Stamp

R = TypeVar("R", bound=Row)
S = TypeVar("S", bound=Row)
T = TypeVar("T")

_STATUS: Final = (
    "identity",
    "epoch",
    "sequence",
    "safe_since_s",
    "pruned_sequence",
    "requests_since_s",
)
SLOW_S: Final = 3600.0
"""Timeout of a statement that reads a whole table."""

COUNTED: Final = 10_000
"""Leases that are counted, so that a count costs the same in every journal."""


class SafeModeReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason for safe mode.

    Attributes:
        reason: Its name.
        text: Its description, for operators.
        since_s: When it came up.
    """

    reason: str
    text: str
    since_s: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a journal.

    Attributes:
        identity: Random id of the journal; names are not unique.
        stamp: Stamp of the newest entry.
        safe_since_s: Since when it is in safe mode, None if it is not.
        safe_reasons: Why it is in safe mode, by name.
        pruned_sequence: Entries up to this one were pruned.
        requests_since_s: Request ids from this time on are kept.
    """

    identity: str
    stamp: Stamp
    safe_since_s: float | None
    safe_reasons: tuple[SafeModeReason, ...] = ()
    pruned_sequence: int
    requests_since_s: float

    @property
    def why_safe(self) -> str:
        """The reasons for safe mode in one line."""
        return "; ".join(f"{one.reason}: {one.text}" for one in self.safe_reasons)


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of a journal. It begins at a failover or a restore, which some entries before it survive.

    Attributes:
        epoch: Number of the epoch; greater than all before, not always by one.
        before: Last sequence of the earlier epochs that survived.
        timeline: Timeline of the server at its beginning.
        reason: Why it began, for operators.
        began_s: When it began, by the database's clock.
    """

    epoch: int
    before: int
    timeline: int
    reason: str
    began_s: float


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored entry; `payload` and `result` are JSON."""

    sequence: int
    epoch: int
    op: str
    payload: str
    request_id: str
    result: str
    at_s: float

    def __str__(self) -> str:
        return f"entry {self.stamp}"

    @property
    def stamp(self) -> Stamp:
        """Stamp of the entry."""
        return Stamp(self.epoch, self.sequence)


class Reading(SqlRows):
    """One journal in one snapshot."""

    def __init__(self, connection: Connection, database: Database, journal: str) -> None:
        super().__init__(connection, journal)
        self.database = database
        self._status: Status | None = None

    def stay_open(self) -> None:
        """Keep the snapshot open for and between slow statements. It blocks no writer."""
        if not self.database.is_sqlite:  # PostgreSQL would end an idle transaction after a minute
            self.connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            driver: Any = self.connection.connection.driver_connection
            driver.silence_s = SLOW_S  # until the connection is used again

    def status(self) -> Status:
        """Return the journal's status; it is read once.

        Raises:
            ObjectNotFoundError: There is no such journal in this database.
        """
        if self._status is None:
            self._status = self._read_status()
        return self._status

    def now_s(self) -> float:
        """Return the time by the database's clock, in seconds since the epoch."""
        return self.connection.execute(select(self.database.now())).scalar_one()

    def get(self, kind: type[R], *key: Any) -> R | None:
        """Return the row with this key, None if it does not exist."""
        return next(iter(self.find(kind, [key])), None)

    def on_path(self, tree: Tree[R, S], names: Sequence[str]) -> list[tuple[R, S | None]]:
        """Return the rows on a path, in order, to the last one that exists; see `Tree`."""
        return self._paired(
            tree, on_path(tree, self.database.is_sqlite), parameters(self.journal, tree, names)
        )

    def below(
        self, tree: Tree[R, S], names: Sequence[str], *, after: str, limit: int
    ) -> list[tuple[R, S | None]]:
        """Return a page of the rows below the end of a path, by name; none if the path does not exist."""
        given = parameters(self.journal, tree, names, after=after, limit=limit)
        return self._paired(tree, below_path(tree, self.database.is_sqlite), given)

    def _paired(
        self, tree: Tree[R, S], query: Select[Any], given: Mapping[str, Any]
    ) -> list[tuple[R, S | None]]:
        (found,) = execute_pipelined(self.connection, [Statement(query, given, keeps_plan=False)])
        end = len(columns_of(tree.kind))
        rows = rows_of(tree.kind, [values[:end] for values in found])
        beside = iter(rows_of(tree.beside, [values[end:] for values in found if values[end] is not None]))
        return [
            (row, None if values[end] is None else next(beside))
            for row, values in zip(rows, found, strict=True)
        ]

    def entries(self, after: int, limit: int) -> Sequence[Entry]:
        """Return at most `limit` entries with a greater sequence, in order.

        Raises:
            MalformedJournalError: A column has a value of another type, or a text that is not UTF-8.
        """
        names = Entry.__struct_fields__
        query = (
            select(*(ENTRY.c[name] for name in names))
            .where(ENTRY.c.journal == self.journal, ENTRY.c.sequence > after)
            .order_by(ENTRY.c.sequence)
            .limit(limit)
        )
        try:
            rows = [dict(zip(names, row, strict=True)) for row in self.connection.execute(query)]
            return convert(rows, list[Entry])
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise MalformedJournalError(
                f"one of the {limit} entries after {after} cannot be read: {error}; restore the journal: "
                "`lockgate journal restore`"
            ) from None

    def _read_status(self) -> Status:
        # Together with BEGIN, if it is the first statement: that costs no round trip of its own.
        (found,) = execute_pipelined(self.connection, [Statement(_head(), {JOURNAL: self.journal})])
        if not found:
            raise ObjectNotFoundError(
                f"journal {self.database.name} holds no journal {self.journal!r}; see LOCKGATE_JOURNAL_URL"
            )
        (head,) = found
        named = dict(zip(_STATUS, head, strict=True))
        reasons = () if named["safe_since_s"] is None else tuple(self._safe_reasons())
        return Status(stamp=Stamp(named.pop("epoch"), named.pop("sequence")), safe_reasons=reasons, **named)

    def _safe_reasons(self) -> Iterator[SafeModeReason]:
        names = SafeModeReason.__struct_fields__
        query = select(*(SAFE_REASON.c[name] for name in names)).order_by(SAFE_REASON.c.reason)
        for row in self.connection.execute(query.where(SAFE_REASON.c.journal == self.journal)):
            yield SafeModeReason(**dict(zip(names, row, strict=True)))


Query = Callable[[Reading], T]
"""Reads one state. It may run again on another copy, so it has no effects and returns no iterator."""


class Reads(Protocol):
    """Where a journal is read: at its primary, or by a client of its observers."""

    def read(self, query: Query[T]) -> T:
        """Run a query on one state, and return its result."""


@cache
def _head() -> Select[Any]:
    return select(*(HEAD.c[name] for name in _STATUS)).where(HEAD.c.journal == bindparam(JOURNAL))


def count_leases(reading: Reading) -> dict[LeaseState, int]:
    """Return the number of leases in each state, among the first `COUNTED` by name."""
    counts, now_s = dict.fromkeys(LeaseState, 0), reading.now_s()
    for lease in reading.where(Lease, {}, limit=COUNTED):
        counts[state_of(lease, now_s)] += 1
    return counts


def stored_bytes(reading: Reading) -> int:
    """Return the size of the tables and indexes where the journal's tables are, free pages included."""
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    if not reading.database.is_sqlite:
        query = (
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
        )
    return int(reading.connection.execute(text(query)).scalar_one())


def read_epochs(reading: Reading) -> list[Epoch]:
    """Return a journal's epochs, oldest first."""
    names = Epoch.__struct_fields__
    query = select(*(EPOCH.c[name] for name in names)).where(EPOCH.c.journal == reading.journal)
    rows = reading.connection.execute(query.order_by(EPOCH.c.epoch))
    return [Epoch(**dict(zip(names, row, strict=True))) for row in rows]


def epoch_of(epochs: Sequence[Epoch], sequence: int) -> int:
    """Return the epoch in which the entry of this sequence was accepted, 0 if none."""
    return max((epoch.epoch for epoch in epochs if epoch.before < sequence), default=0)


def survived(epochs: Sequence[Epoch], stamp: Stamp) -> bool:
    """Return whether a stamp belongs to this history, not to a branch cut off by a failover or a restore."""
    later = (epoch.before for epoch in epochs if epoch.epoch > stamp.epoch)
    return any(epoch.epoch == stamp.epoch for epoch in epochs) and stamp.sequence <= min(
        later, default=stamp.sequence
    )
