"""Replay entries: fold them again and compare the results.

Renewals write no entries, so a replayed lease looks older than it was. A `TakeLease` that was accepted is
accepted again; only the previous state in its result may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from lockgate.storage_core.errors import LockgateError, MalformedJournalError
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.entries.family import decode_op, decode_result, known_families
from lockgate.storage_core.journal.entries.lease_entries import Granted, LeaseState
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Row, State
from lockgate.storage_core.journal.read.snapshot_read import Entry, Epoch, Reading, epoch_of

BATCH: Final = 1000
"""Number of entries read, folded and written together."""

_BY_RENEWAL: Final = frozenset({LeaseState.HELD, LeaseState.SOFT, LeaseState.HARD, LeaseState.RECOVERING})


def batches(reading: Reading, after: int, last: int) -> Iterator[Sequence[Entry]]:
    """Yield the entries after sequence `after` up to `last`, in batches.

    Raises:
        MalformedJournalError: An entry is missing; the message names it.
    """
    while after < last:
        entries = reading.entries(after, min(BATCH, last - after))
        expected = range(after + 1, after + 1 + len(entries))
        for entry, sequence in zip(entries, expected, strict=True):
            if entry.sequence != sequence:
                raise _gap(sequence, entry.sequence - 1)
        if not entries:
            raise _gap(after + 1, last)
        yield entries
        after = entries[-1].sequence


def replay(rows: SqlRows, entries: Sequence[Entry], epochs: Sequence[Epoch]) -> State:
    """Fold entries into rows, and check that each has the same result as before.

    Returns:
        The rows that were read and written.

    Raises:
        MalformedJournalError: An entry is unknown, has a wrong epoch, is refused or has another result; the
            message names it. None of these entries was written to the rows.
    """
    families = known_families()
    ops = [decode_op(entry.op, entry.payload, entry) for entry in entries]
    state = State(rows)
    state.load(key for op in ops for key in families.touches(op))
    state.load_spans(span for op in ops for span in families.spans(op))
    epoch = epoch_of(epochs, entries[0].sequence)
    is_one_epoch = epoch == epoch_of(epochs, entries[-1].sequence)
    for entry, op in zip(entries, ops, strict=True):
        if not is_one_epoch:
            epoch = epoch_of(epochs, entry.sequence)
        if entry.epoch != epoch:
            raise MalformedJournalError(f"{entry}: by the journal's epochs it belongs to {epoch}")
        _fold(state, entry, op)
    state.load(state.changes)  # before they are overwritten, for `replacements`
    rows.write(state.changes, state.absent)
    return state


def _fold(state: State, entry: Entry, op: Op) -> None:
    stored = decode_result(op, entry.result, entry)
    try:
        result = op.fold(state, Moment(stamp=entry.stamp, at_s=entry.at_s))
    except LockgateError as error:
        raise MalformedJournalError(
            f"{entry}: {entry.op} was accepted once, and is refused on replay: {error}"
        ) from None
    if _comparable(result) != _comparable(stored):
        raise MalformedJournalError(
            f"{entry}: {entry.op} gives {result!r} on replay, where {stored!r} was answered"
        )


def _comparable(result: Any) -> Any:
    """Return a result without the difference that renewals make, which the fold does not see."""
    if isinstance(result, Granted) and result.before in _BY_RENEWAL:
        return msgspec.structs.replace(result, before=LeaseState.HELD)
    return result


def _gap(first: int, last: int) -> MalformedJournalError:
    missing = f"entry {first} is" if first >= last else f"entries {first} to {last} are"
    return MalformedJournalError(f"{missing} missing: the journal has a gap; what follows cannot be replayed")


def load(rows: SqlRows, loaded: Iterable[Row]) -> None:
    """Write the rows of a snapshot, as the basis of a replay."""
    batch: dict[Key, Row | None] = {}
    for row in loaded:
        batch[type(row), row.key] = row
        if len(batch) == BATCH:
            rows.write(batch)
            batch = {}
    rows.write(batch)
