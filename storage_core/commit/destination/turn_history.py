"""The turns of a destination, with what each added and removed; what differs between two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import last_decided
from lockgate.storage_core.commit.destination.tags import tags
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.shards import total_rows
from lockgate.storage_core.concurrency import in_order


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a destination.

    Attributes:
        decided_s: Time of its outcome.
        mode: Mode of its job; empty for a turn that is not `published`.
        files_added: Number of files that it added.
        files_removed: Number of files that it removed.
        rows_added: Rows of these; None if they are unknown for any.
        rows_removed: Rows of these; None if they are unknown for any.
    """

    turn: int
    decided_s: float
    verdict: str
    job_id: str
    mode: str
    files_added: int
    files_removed: int
    rows_added: int | None
    rows_removed: int | None
    tags: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What is live after one turn and not after another.

    Attributes:
        added: Files that are live after the second turn only, by key.
        removed: Files that are live after the first turn only, by key.
    """

    from_turn: int
    to_turn: int
    added: tuple[LiveFile, ...]
    removed: tuple[LiveFile, ...]
    rows_added: int | None
    rows_removed: int | None


def turn_history(log: DestinationLog, *, before: int | None = None, limit: int = 20) -> list[TurnSummary]:
    """Return turns with an outcome, the newest first.

    Args:
        log: Log of the destination.
        before: Only turns before this one.
        limit: Maximum number of turns.

    Raises:
        MalformedLogError: An outcome or a list of files is invalid.
    """
    decided = last_decided(log)
    last = decided if before is None else min(before - 1, decided)
    first = max(1, last - limit + 1)
    if last < first:
        return []
    names = defaultdict[int, list[str]](list)
    for tag in tags(log.store):
        names[tag.turn].append(tag.name)
    live = dict(log.manifest(first - 1).files)
    turns = []
    for outcome in filter(None, in_order(log.outcome, range(first, last + 1), log.at_once)):
        added, removed = log.changes(outcome)
        turns.append(
            TurnSummary(
                turn=outcome.turn,
                decided_s=outcome.decided_s,
                verdict=outcome.verdict,
                job_id=outcome.job_id,
                mode="" if outcome.receipt is None else outcome.receipt.mode,
                files_added=len(added),
                files_removed=len(removed),
                rows_added=total_rows(file.rows for file in added.values()),
                rows_removed=total_rows(live[key].rows if key in live else None for key in removed),
                tags=tuple(names[outcome.turn]),
            )
        )
        for key in removed:
            live.pop(key, None)
        live.update(added)
    return turns[::-1]


def difference(log: DestinationLog, from_turn: int, to_turn: int) -> Difference:
    """Compare the files after two turns, in either order; the files need not exist any more.

    A file that a revert has made live again is the same file, although its key is another one.

    Raises:
        InvalidInputError: The log has no such turn.
        MalformedLogError: An outcome or a list of files is invalid.
    """
    old, new = log.manifest(from_turn).files, log.manifest(to_turn).files
    added, removed = _only_in(new, old), _only_in(old, new)
    return Difference(
        from_turn=from_turn,
        to_turn=to_turn,
        added=added,
        removed=removed,
        rows_added=_rows(added),
        rows_removed=_rows(removed),
    )


def _only_in(files: Mapping[str, LiveFile], others: Mapping[str, LiveFile]) -> tuple[LiveFile, ...]:
    known = {file.identity for file in others.values()}
    return tuple(files[key] for key in sorted(files) if files[key].identity not in known)


def _rows(files: Iterable[LiveFile]) -> int | None:
    return total_rows(file.rows for file in files)
