"""One write transaction: lock the head, answer repeated requests, fold, number and store the others.

The sequence comes from the head's row, in the transaction that changes the tables. With an auto-increment, a
reader that polls for greater numbers would miss rows that commit late.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, Text, Update, bindparam, insert, literal_column, select, update

from lockgate.storage_core.errors import ConflictError, LockgateError, StaleRequestError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.database import NOW, Database, now_parameter, timeline
from lockgate.storage_core.journal.database.engines import SYNCHRONOUS_COMMIT
from lockgate.storage_core.journal.database.pipeline import PLANS_KEPT, Row, Statement, execute_pipelined
from lockgate.storage_core.journal.database.renewals import add_holders
from lockgate.storage_core.journal.database.row_access import SqlRows, row_of
from lockgate.storage_core.journal.database.schema import ENTRY, EPOCH, HEAD, REQUEST
from lockgate.storage_core.journal.entries.encoding import decode_result, encode_op
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.op import Moment
from lockgate.storage_core.journal.entries.rows import Lease, Request
from lockgate.storage_core.journal.entries.state import State, by_columns, by_kind
from lockgate.storage_core.journal.read.same_journal import (
    Known,
    gone_back,
    journal_gone,
    refuse_other_journal,
)
from lockgate.storage_core.journal.read.snapshot_read import Entry
from lockgate.storage_core.journal.write.mutation import Mutation, Refused, WriteOutcome, Written
from lockgate.storage_core.stamp import Stamp

_Applied = Entry | Request
"""An applied request, of this transaction or of an earlier one."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A journal's locked head row, and the time.

    Attributes:
        identity: Random id of the journal.
        stamp: Stamp of the newest entry.
        now_s: Time of the database's clock, after the lock.
        timeline: Current timeline of the server.
        requests_since_s: Request ids from this time on are kept.
    """

    identity: str
    stamp: Stamp
    now_s: float
    timeline: int
    is_safe_mode: bool
    requests_since_s: float


def write(database: Database, known: Known, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
    """Apply mutations in one transaction; a refused one does not affect the others.

    Args:
        database: Database of the journal.
        known: The journal that the process has opened.
        mutations: Mutations, numbered in this order.

    Returns:
        An outcome for each mutation, in order. They are durable when this returns.

    Raises:
        JournalUnavailableError: None was applied.
        StateLostError: The database is not the known one; none was applied.
        OutcomeUnknownError: All or none were applied; retry with the same request ids.
    """
    began_s, journal = time.perf_counter(), known.journal
    with metrics.span("write", journal), database.write() as connection:
        rows = SqlRows(connection, journal, lock=True)
        state = State(rows)
        head, requests = _lock_and_load(database, known, mutations, rows, state)
        outcomes, entries = list[WriteOutcome](), list[Entry]()
        stamp = head.stamp
        for mutation in mutations:
            outcome = _repeated(mutation, requests, head)
            if outcome is None:
                stamp = msgspec.structs.replace(head.stamp, sequence=stamp.sequence + 1)
                outcome = _fold(mutation, state, head, stamp)
                if isinstance(outcome, Refused):
                    stamp = msgspec.structs.replace(stamp, sequence=stamp.sequence - 1)
                else:
                    entry = _entry(mutation, outcome)
                    entries.append(entry)
                    requests[mutation.request_id] = entry
            outcomes.append(outcome)
        if entries:
            changes, removals = rows.to_write(state.changes, state.absent)
            changes.append(bulk.Change(ENTRY, entries, are_new=True))
            added = add_holders(journal, state.changes.values(), for_sqlite=database.is_sqlite)
            bulk.store(connection, journal, changes, [*added, *removals, _move_head(journal, stamp)])
    seconds = time.perf_counter() - began_s
    metrics.record_write(journal, entries=len(entries), mutations=len(mutations), seconds=seconds)
    return outcomes


def lock_head(connection: Connection, database: Database, known: Known) -> Head:
    """Lock and return a journal's head row; begin a new epoch if the server's timeline has changed.

    Raises:
        StateLostError: The database is not the known one.
    """
    (locked,) = execute_pipelined(connection, [_lock_statement(database, known.journal, keeps_plans=False)])
    return _head(connection, database, known, locked)


def _lock_and_load(
    database: Database, known: Known, mutations: Sequence[Mutation], rows: SqlRows, state: State
) -> tuple[Head, dict[str, _Applied]]:
    """Lock the head, then load the known requests and the rows that the mutations touch."""
    connection, journal, families = rows.connection, rows.journal, known_families()
    keys_of = by_kind(key for mutation in mutations for key in families.touches(mutation.op))
    spans = by_columns(span for mutation in mutations for span in families.spans(mutation.op))
    locks = rows.locks(Lease, keys_of.get(Lease, ()))
    locked, repeated, *found = execute_pipelined(
        connection,
        [
            _lock_statement(database, journal, keeps_plans=not database.is_sqlite),
            _known_statement(database, journal, [mutation.request_id for mutation in mutations]),
            *locks,
            *(rows.select_by_key(kind, keys) for kind, keys in keys_of.items()),
            *(rows.select_by_columns(*span, values) for span, values in spans.items()),
        ],
    )
    head = _head(connection, database, known, locked)
    del found[: len(locks)]
    for (kind, keys), values in zip(keys_of.items(), found[: len(keys_of)], strict=True):
        state.add(kind, keys, [row_of(kind, row) for row in values])
    for ((kind, columns), shared), values in zip(spans.items(), found[len(keys_of) :], strict=True):
        state.add_spans([(kind, columns, one) for one in shared], [row_of(kind, row) for row in values])
    requests = [row_of(Request, row) for row in repeated]
    return head, {request.request_id: request for request in requests}


def _head(connection: Connection, database: Database, known: Known, locked: Sequence[Row]) -> Head:
    if not locked:
        raise journal_gone(database.name, known)
    ((identity, epoch, sequence, safe_since_s, requests_since_s, timeline, now_s, server_timeline, *_),) = (
        locked
    )
    refuse_other_journal(database.name, known, identity)
    if timeline != server_timeline:
        reason = f"the server's timeline changed from {timeline} to {server_timeline}"
        last = Stamp(epoch, sequence)
        epoch = begin_epoch(
            connection, known.journal, last, timeline=server_timeline, reason=reason, now_s=now_s
        )
    elif Stamp(epoch, sequence) < known.newest:
        raise gone_back(database.name, known, Stamp(epoch, sequence))
    return Head(
        identity=identity,
        stamp=Stamp(epoch, sequence),
        now_s=now_s,
        timeline=server_timeline,
        is_safe_mode=safe_since_s is not None,
        requests_since_s=requests_since_s,
    )


def _lock_statement(database: Database, journal: str, *, keeps_plans: bool) -> Statement:
    lock = _lock(database.is_sqlite, keeps_plans)
    return Statement(lock, {bulk.JOURNAL: journal, NOW: database.injected_now_s()})


@cache
def _lock(for_sqlite: bool, keeps_plans: bool) -> Select[Any]:
    """Lock the head's row without writing it, so that a write makes one version of it, not two.

    PostgreSQL computes the columns of a SELECT … FOR UPDATE before it waits for the row, so the query around
    it reads the time. On SQLite the transaction already holds the lock.
    """
    names = ("identity", "epoch", "sequence", "safe_since_s", "requests_since_s", "timeline")
    head = select(*(HEAD.c[name] for name in names)).where(HEAD.c.journal == bindparam(bulk.JOURNAL))
    locked = (head if for_sqlite else head.with_for_update()).subquery()
    return select(
        *(locked.c[name] for name in names),
        now_parameter(for_sqlite),
        timeline(for_sqlite),
        *(() if for_sqlite else (literal_column(SYNCHRONOUS_COMMIT, Text),)),  # it may be off by a reload
        *(PLANS_KEPT if keeps_plans else ()),
    )


def _move_head(journal: str, stamp: Stamp) -> Statement:
    return Statement(_move(), {bulk.JOURNAL: journal, "reached": stamp.sequence})


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
    """Begin a new epoch, so that no stamp of the previous one is issued again, and return its number.

    Args:
        connection: Connection that holds the head's lock.
        journal: Name of the journal.
        last: The newest stamp that survived.
        timeline: Current timeline of the server.
        reason: Shown to operators.
        now_s: Time of the database's clock.
        epoch: The claimed number; by default the next one.
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


def _known_statement(database: Database, journal: str, ids: Sequence[str]) -> Statement:
    given = bulk.parameters(journal, [ENTRY.c.request_id], [(request_id,) for request_id in ids])
    return Statement(_known(database.is_sqlite), given)


@cache
def _known(for_sqlite: bool) -> bulk.Query:
    columns = [[table.c[name] for name in Request.__struct_fields__] for table in (ENTRY, REQUEST)]
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
                f"request {mutation.request_id} is older than the request ids that the journal keeps, so it "
                "is unknown whether it was applied; nothing was changed; check the current state, then send "
                "a new request"
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
