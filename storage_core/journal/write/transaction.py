"""One write transaction: lock the head, answer what is known, fold the rest, number it, store it.

A sequence is taken in the transaction that changes the tables, from the head's row. With an auto-increment a
reader that polls for greater numbers misses rows that commit late.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import starmap
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, Update, bindparam, insert, update

from lockgate.storage_core.errors import ConflictError, LockgateError, ObjectNotFoundError, StaleRequestError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.database import NOW, Database, timeline, told_now
from lockgate.storage_core.journal.database.pipeline import PLANS_KEPT, Question, Row, ask
from lockgate.storage_core.journal.database.row_access import SqlRows, row_of
from lockgate.storage_core.journal.database.schema import ENTRY, EPOCH, HEAD, REQUEST
from lockgate.storage_core.journal.entries.encoding import decode_result, encode_op
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.op import Moment
from lockgate.storage_core.journal.entries.state import State, by_kind, by_length
from lockgate.storage_core.journal.read.snapshot_read import Entry
from lockgate.storage_core.journal.write.mutation import Mutation, Refused, WriteOutcome, Written
from lockgate.storage_core.stamp import Stamp


class _Remembered(NamedTuple):
    """What came of a request in a group before."""

    request_id: str
    epoch: int
    sequence: int
    op: str
    result: str
    at_s: float


_Applied = Entry | _Remembered
"""What came of a request id: an entry of this group, or what is remembered of those before."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A journal's head row, locked, and the moment at which it was.

    Attributes:
        identity: Tells the journal from every other.
        stamp: Of the newest entry.
        now_s: By the database's clock, after the lock.
        timeline: Of the server now.
        requests_since_s: Request ids from then on are kept.
    """

    identity: str
    stamp: Stamp
    now_s: float
    timeline: int
    is_safe_mode: bool
    requests_since_s: float


def write(database: Database, journal: str, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
    """Apply a group of mutations in one transaction; one that is refused falls out of it alone.

    Args:
        database: Of the journal.
        journal: Its name.
        mutations: In the order in which they are numbered.

    Returns:
        An outcome a mutation, in their order. They are durable when this returns.

    Raises:
        JournalUnavailableError: None was applied.
        OutcomeUnknownError: All were, or none: the same request ids ask again.
    """
    began_s = time.perf_counter()
    with metrics.span("write", journal), database.write() as connection:
        rows = SqlRows(connection, journal, lock=True)
        state = State(rows)
        head, known = _learn(database, mutations, rows, state)
        outcomes, entries = list[WriteOutcome](), list[Entry]()
        stamp = head.stamp
        for mutation in mutations:
            outcome = _repeated(mutation, known, head)
            if outcome is None:
                stamp = msgspec.structs.replace(head.stamp, sequence=stamp.sequence + 1)
                outcome = _fold(mutation, state, head, stamp)
                if isinstance(outcome, Refused):
                    stamp = msgspec.structs.replace(stamp, sequence=stamp.sequence - 1)
                else:
                    entry = _entry(mutation, outcome)
                    entries.append(entry)
                    known[mutation.request_id] = entry
            outcomes.append(outcome)
        if entries:
            changes, removals = rows.to_write(state.changes, state.absent)
            changes.append(bulk.Change(ENTRY, entries, are_new=True))
            bulk.store(connection, journal, changes, [*removals, _moving(journal, stamp)])
    seconds = time.perf_counter() - began_s
    metrics.wrote(journal, entries=len(entries), mutations=len(mutations), seconds=seconds)
    return outcomes


def lock_head(connection: Connection, database: Database, journal: str) -> Head:
    """Lock a journal's head row, begin a new epoch if the server's timeline has changed, tell the time.

    Raises:
        ObjectNotFoundError: There is no such journal in this database.
    """
    (locked,) = ask(connection, [_locking(database, journal, keeps_plans=False)])
    return _head(connection, database, journal, locked)


def _learn(
    database: Database, mutations: Sequence[Mutation], rows: SqlRows, state: State
) -> tuple[Head, dict[str, _Applied]]:
    """Lock the head; learn after it what came of these requests, and the rows that they touch."""
    connection, journal, families = rows.connection, rows.journal, known_families()
    wanted = by_kind(key for mutation in mutations for key in families.touches(mutation.op))
    spans = by_length(span for mutation in mutations for span in families.spans(mutation.op))
    locked, known, *found = ask(
        connection,
        [
            _locking(database, journal, keeps_plans=not database.is_sqlite),
            _knowing(database, journal, [mutation.request_id for mutation in mutations]),
            *(rows.looking_for(kind, keys) for kind, keys in wanted.items()),
            *(rows.looking_in(kind, beginnings) for (kind, _), beginnings in spans.items()),
        ],
    )
    head = _head(connection, database, journal, locked)
    for (kind, keys), these in zip(wanted.items(), found[: len(wanted)], strict=True):
        state.learn(kind, keys, [row_of(kind, row) for row in these])
    for ((kind, _), beginnings), these in zip(spans.items(), found[len(wanted) :], strict=True):
        state.learn_spans([(kind, one) for one in beginnings], [row_of(kind, row) for row in these])
    return head, {one.request_id: one for one in starmap(_Remembered, known)}


def _head(connection: Connection, database: Database, journal: str, locked: Sequence[Row]) -> Head:
    if not locked:
        raise ObjectNotFoundError(f"journal {database.name} has no journal named {journal!r}")
    ((identity, epoch, sequence, safe_since_s, requests_since_s, timeline, now_s, server_timeline, *_),) = (
        locked
    )
    if timeline != server_timeline:
        reason = f"the server's timeline changed from {timeline} to {server_timeline}"
        last = Stamp(epoch, sequence)
        epoch = begin_epoch(connection, journal, last, timeline=server_timeline, reason=reason, now_s=now_s)
    return Head(
        identity=identity,
        stamp=Stamp(epoch, sequence),
        now_s=now_s,
        timeline=server_timeline,
        is_safe_mode=safe_since_s is not None,
        requests_since_s=requests_since_s,
    )


def _locking(database: Database, journal: str, *, keeps_plans: bool) -> Question:
    lock = _lock(database.is_sqlite, keeps_plans)
    return Question(lock, {bulk.JOURNAL: journal, NOW: database.told_now_s()})


@cache
def _lock(for_sqlite: bool, keeps_plans: bool) -> Update:
    names = ("identity", "epoch", "sequence", "safe_since_s", "requests_since_s", "timeline")
    return (
        update(HEAD)
        .where(HEAD.c.journal == bindparam(bulk.JOURNAL))
        .values(sequence=HEAD.c.sequence)
        .returning(
            *(HEAD.c[name] for name in names),
            told_now(for_sqlite),
            timeline(for_sqlite),
            *(PLANS_KEPT if keeps_plans else ()),
        )
    )


def _moving(journal: str, stamp: Stamp) -> Question:
    return Question(_move(), {bulk.JOURNAL: journal, "reached": stamp.sequence})


@cache
def _move() -> Update:
    of_journal = HEAD.c.journal == bindparam(bulk.JOURNAL)
    return update(HEAD).where(of_journal).values(sequence=bindparam("reached"))


def begin_epoch(
    connection: Connection,
    journal: str,
    last: Stamp,
    *,
    timeline: int,
    reason: str,
    now_s: float,
    epoch: int | None = None,
) -> int:
    """Begin a new epoch, so that no stamp of the one before is used again; returns its number.

    Args:
        connection: Holds the head's lock.
        journal: Its name.
        last: The newest stamp that survived.
        timeline: Of the server now.
        reason: For people.
        now_s: By the database's clock.
        epoch: Its number, where one was claimed; by default the next.
    """
    number = epoch or last.epoch + 1
    connection.execute(
        insert(EPOCH).values(
            journal=journal,
            epoch=number,
            before=last.sequence,
            timeline=timeline,
            reason=reason,
            began_s=now_s,
        )
    )
    connection.execute(update(HEAD).where(HEAD.c.journal == journal).values(epoch=number, timeline=timeline))
    return number


def _knowing(database: Database, journal: str, ids: Sequence[str]) -> Question:
    given = bulk.parameters(journal, [ENTRY.c.request_id], [(request_id,) for request_id in ids])
    return Question(_known(database.is_sqlite), given)


@cache
def _known(for_sqlite: bool) -> bulk.Query:
    columns = [[table.c[name] for name in _Remembered._fields] for table in (ENTRY, REQUEST)]
    return bulk.matching(columns, ["request_id"], for_sqlite)


def _repeated(mutation: Mutation, known: Mapping[str, _Applied], head: Head) -> WriteOutcome | None:
    row = known.get(mutation.request_id)
    if row is not None:
        name, _ = encode_op(mutation.op)
        if row.op != name:
            return Refused(
                ConflictError(
                    f"request {mutation.request_id} was a {row.op} (entry {row.sequence}), "
                    f"and is now a {name}; nothing was changed; a new request needs a new id"
                )
            )
        stamp = Stamp(row.epoch, row.sequence)
        result = decode_result(mutation.op, row.result, f"entry {stamp}")
        return Written(stamp=stamp, result=result, at_s=row.at_s, is_repeat=True)
    if mutation.asked_s < head.requests_since_s:
        return Refused(
            StaleRequestError(
                f"request {mutation.request_id} is older than what the journal remembers: nobody "
                "knows whether it was applied; nothing was changed; look at what stands, then ask anew"
            )
        )
    return None


def _fold(mutation: Mutation, state: State, head: Head, stamp: Stamp) -> WriteOutcome:
    mark = state.mark()
    moment = Moment(stamp=stamp, at_s=head.now_s, is_safe_mode=head.is_safe_mode)
    try:
        result = mutation.op.fold(state, moment)
    except LockgateError as error:
        state.undo(mark)
        return Refused(error, Stamp(stamp.epoch, stamp.sequence - 1))
    return Written(stamp=stamp, result=result, at_s=head.now_s)


def _entry(mutation: Mutation, written: Written) -> Entry:
    name, payload = encode_op(mutation.op)
    return Entry(
        sequence=written.stamp.sequence,
        epoch=written.stamp.epoch,
        op=name,
        payload=payload,
        request_id=mutation.request_id,
        result=msgspec.json.encode(written.result, order="deterministic").decode(),
        at_s=written.at_s,
    )


def refusals(outcomes: Iterable[WriteOutcome]) -> list[LockgateError]:
    """Return the errors of those that were refused."""
    return [outcome.error for outcome in outcomes if isinstance(outcome, Refused)]
