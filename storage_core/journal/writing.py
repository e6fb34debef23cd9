"""One write transaction: lock the head, answer what is known, fold the rest, number it, store it.

A sequence is taken in the transaction that changes the tables, from the head's row. With an auto-increment a
reader that polls for greater numbers misses rows that commit late (measured: docs/field-notes.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import CompoundSelect, Connection, insert, union_all, update
from sqlalchemy import Row as SqlRow

from storage_core.errors import ConflictError, LockgateError, ObjectNotFoundError, StaleRequestError
from storage_core.journal import bulk, metrics
from storage_core.journal.database import Database
from storage_core.journal.mutation import Mutation, Outcome, Refused, Written
from storage_core.journal.ops import Moment, decode_result, encode_op
from storage_core.journal.reading import Entry
from storage_core.journal.schema import ENTRY, EPOCH, HEAD, REQUEST
from storage_core.journal.state import State
from storage_core.journal.tables import SqlRows
from storage_core.stamp import Stamp

_Applied = Entry | SqlRow[Any]
"""What came of a request id: an entry of this group, or a row of those before."""


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


def write(database: Database, journal: str, mutations: Sequence[Mutation]) -> list[Outcome]:
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
        head = lock_head(connection, database, journal)
        known = _known(connection, journal, [mutation.request_id for mutation in mutations])
        rows = SqlRows(connection, journal, lock=True)
        state = State(rows)
        state.load(key for m in mutations if m.request_id not in known for key in m.op.touches())
        outcomes, entries = list[Outcome](), list[Entry]()
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
            bulk.add(connection, ENTRY, journal, entries)
            rows.write(state.changes)
            connection.execute(update(HEAD).where(HEAD.c.journal == journal).values(sequence=stamp.sequence))
    seconds = time.perf_counter() - began_s
    metrics.wrote(journal, entries=len(entries), mutations=len(mutations), seconds=seconds)
    return outcomes


def lock_head(connection: Connection, database: Database, journal: str) -> Head:
    """Lock a journal's head row, begin a new epoch if the server's timeline has changed, tell the time.

    Raises:
        ObjectNotFoundError: There is no such journal in this database.
    """
    locked = connection.execute(
        update(HEAD)
        .where(HEAD.c.journal == journal)
        .values(sequence=HEAD.c.sequence)
        .returning(
            *(HEAD.c[name] for name in ("identity", "epoch", "sequence", "safe_since_s", "requests_since_s")),
            HEAD.c.timeline,
            database.now().label("now_s"),
            database.timeline().label("server_timeline"),
        )
    ).one_or_none()
    if locked is None:
        raise ObjectNotFoundError(f"journal {database.name} has no journal named {journal!r}")
    epoch = locked.epoch
    if locked.timeline != locked.server_timeline:
        reason = f"the server's timeline changed from {locked.timeline} to {locked.server_timeline}"
        epoch = begin_epoch(
            connection,
            journal,
            Stamp(epoch, locked.sequence),
            timeline=locked.server_timeline,
            reason=reason,
            now_s=locked.now_s,
        )
    return Head(
        identity=locked.identity,
        stamp=Stamp(epoch, locked.sequence),
        now_s=locked.now_s,
        timeline=locked.server_timeline,
        is_safe_mode=locked.safe_since_s is not None,
        requests_since_s=locked.requests_since_s,
    )


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


@cache
def _known_ids(for_sqlite: bool) -> CompoundSelect[Any]:
    names = ("request_id", "epoch", "sequence", "op", "result", "at_s")
    return union_all(
        *(
            bulk.matching([table.c[name] for name in names], [table.c.request_id], for_sqlite)
            for table in (ENTRY, REQUEST)
        )
    )


def _known(connection: Connection, journal: str, ids: Sequence[str]) -> dict[str, _Applied]:
    asked = bulk.parameters(journal, [(request_id,) for request_id in ids])
    found = connection.execute(_known_ids(bulk.is_sqlite(connection)), asked)
    return {row.request_id: row for row in found}


def _repeated(mutation: Mutation, known: Mapping[str, _Applied], head: Head) -> Outcome | None:
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


def _fold(mutation: Mutation, state: State, head: Head, stamp: Stamp) -> Outcome:
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


def refusals(outcomes: Iterable[Outcome]) -> list[LockgateError]:
    """Return the errors of those that were refused."""
    return [outcome.error for outcome in outcomes if isinstance(outcome, Refused)]
