"""One write transaction: lock the head, answer repeated requests, fold, number and store the others.

The sequence comes from the head's row, in the transaction that changes the tables. With an auto-increment, a
reader that polls for greater numbers would miss rows that commit late.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
from sqlalchemy import Update, bindparam, update

from lockgate.storage_core.errors import ConflictError, LockgateError, StaleRequestError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.database import Database
from lockgate.storage_core.journal.database.pipeline import Statement, execute_pipelined
from lockgate.storage_core.journal.database.renewals import add_holders
from lockgate.storage_core.journal.database.row_access import SqlRows, row_of
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, REQUEST
from lockgate.storage_core.journal.entries.family import decode_result, encode_op, known_families
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.op import Moment
from lockgate.storage_core.journal.entries.state import Request, State, by_columns, by_kind
from lockgate.storage_core.journal.read.same_journal import Known
from lockgate.storage_core.journal.read.snapshot_read import Entry
from lockgate.storage_core.journal.write.head import Head, lock_statement, read_head
from lockgate.storage_core.journal.write.mutation import Mutation, Refused, WriteOutcome, Written
from lockgate.storage_core.stamp import Stamp

_Applied = Entry | Request
"""An applied request, of this transaction or of an earlier one."""


def write(database: Database, known: Known, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
    """Apply mutations in one transaction; a refused one does not affect the others.

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
            lock_statement(database, journal, keeps_plans=not database.is_sqlite),
            _known_statement(database, journal, [mutation.request_id for mutation in mutations]),
            *locks,
            *(rows.select_by_key(kind, keys) for kind, keys in keys_of.items()),
            *(rows.select_by_columns(*span, values) for span, values in spans.items()),
        ],
    )
    head = read_head(connection, database, known, locked)
    del found[: len(locks)]
    for (kind, keys), values in zip(keys_of.items(), found[: len(keys_of)], strict=True):
        state.add(kind, keys, [row_of(kind, row) for row in values])
    for ((kind, columns), shared), values in zip(spans.items(), found[len(keys_of) :], strict=True):
        state.add_spans([(kind, columns, one) for one in shared], [row_of(kind, row) for row in values])
    requests = [row_of(Request, row) for row in repeated]
    return head, {request.request_id: request for request in requests}


def _move_head(journal: str, stamp: Stamp) -> Statement:
    return Statement(_move(), {bulk.JOURNAL: journal, "reached": stamp.sequence})


@cache
def _move() -> Update:
    of_journal = HEAD.c.journal == bindparam(bulk.JOURNAL)
    return update(HEAD).where(of_journal).values(sequence=bindparam("reached"))


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
