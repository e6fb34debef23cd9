"""A turn of a destination, and how it can be read: tags, versions of tables, whether its files stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, Final, Literal, NamedTuple

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.jobs import Origin
from lockgate.storage_core.commit.destination.kept_files import history_rule, sizes_at
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.tags import tags
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.log_records import KeyShard
from lockgate.storage_core.commit.records.shards import read_shard
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import LockgateError, MalformedRecordError
from lockgate.storage_core.tables.maintenance import TableStatus, status_of

READS_AT_ONCE: Final = 8


class Turn(Model):
    """One entry of a destination's log.

    Attributes:
        verdict: `published`, `reverted`, `passed`; None while the turn has no outcome.
        origin: The Airflow task that set the job up; None without Airflow, or if it is not recorded.
        created_by: User, host and process that set the job up without Airflow; empty if it is not recorded.
        mode: Mode of its job; empty if it published nothing.
        removed_rows: Rows of the removed files; None if they are not known for each of them.
        tags: Its names.
        delta_version: Version of the Delta table; None if the table has none of this turn.
        iceberg_snapshot: Id of the snapshot of the Iceberg table; None if the table has none of this turn.
        no_revert: Why the files of this turn cannot be made live again; empty if a revert may be tried.
    """

    turn: int
    job_id: str
    origin: Origin | None = None
    created_by: str = ""
    verdict: Literal["published", "reverted", "passed"] | None = None
    decided_s: float | None = None
    mode: str = ""
    added_files: int = 0
    added_rows: int | None = None
    added_bytes: int = 0
    removed_files: int = 0
    removed_rows: int | None = None
    removed_bytes: int = 0
    reason: str = ""
    tags: tuple[str, ...] = ()
    delta_version: int | None = None
    iceberg_snapshot: int | None = None
    no_revert: str = ""


class Above(NamedTuple):
    """What is known of the turns after a turn.

    Attributes:
        replaced_by: The first turn after it whose replaced files nothing keeps; 0 if there is none.
        are_gone: Whether these files are known to be gone.
        decided_s: Time of the outcome of the turn after it; infinite if it is the last one.
    """

    replaced_by: int = 0
    are_gone: bool = False
    decided_s: float = inf


def with_readers(
    log: DestinationLog,
    turns: Sequence[Turn],
    last: int,
    above: Above,
    *,
    now_s: float,
    unknown: list[str],
) -> tuple[list[Turn], Above]:
    """Return turns with how they can be read, and what the turns before them need to know.

    Only the records of these turns are read: the files of a turn stay while each later turn that replaced
    some left them, by the history rule or for a tag. The dry run of a revert looks at each file.

    Args:
        log: Log of the destination.
        turns: Turns that follow each other, the newest first.
        last: Last turn of the log with an outcome.
        above: What is known of the turns after them.
        now_s: Time of now.
        unknown: Receives what cannot be read.
    """
    names, rule, tables = defaultdict[int, list[str]](list), None, list[TableStatus]()
    try:
        for tag in tags(log.store, READS_AT_ONCE):
            names[tag.turn].append(tag.name)
        rule, tables = history_rule(log.store), status_of(log)
    except LockgateError as error:
        unknown.append(str(error))
    versions = {table.format: range(table.first_turn, (table.turn or 0) + 1) for table in tables}
    next_s = [above.decided_s, *(inf if one.decided_s is None else one.decided_s for one in turns[:-1])]
    kept = {
        one.turn: rule is not None
        and (one.turn in names or one.turn >= last - rule.keep_turns or at_s >= now_s - rule.keep_s)
        for one, at_s in zip(turns, next_s, strict=True)
    }
    replacing = [above.replaced_by, *(one.turn for one in turns if one.removed_files)]
    asked = [turn for turn in replacing if kept.get(turn - 1)]
    left = dict(zip(asked, in_order(partial(_left, log), asked, READS_AT_ONCE), strict=True))
    found: list[Turn] = []
    replaced_by, are_gone = above.replaced_by, above.are_gone
    for one in turns:
        are_gone = are_gone or (replaced_by == one.turn + 1 and not left.get(replaced_by, True))
        if kept[one.turn] and not are_gone:
            replaced_by = 0
        changes: dict[str, Any] = {
            "tags": tuple(names[one.turn]),
            "delta_version": one.turn - 1 if one.turn in versions.get("delta", ()) else None,
            "iceberg_snapshot": one.turn if one.turn in versions.get("iceberg", ()) else None,
            "no_revert": _no_revert(one, last, replaced_by),
        }
        found.append(one.model_copy(update=changes))
        if one.removed_files:
            replaced_by, are_gone = one.turn, False
    decided_s = turns[-1].decided_s if turns else None
    return found, Above(replaced_by, are_gone, inf if decided_s is None else decided_s)


def _left(log: DestinationLog, turn: int) -> bool:
    """Return whether a turn left the files that it replaced: it leaves all or none."""
    try:
        outcome = log.outcome(turn)
        if outcome is not None and outcome.removed:
            shard = read_shard(log.store, KeyShard, layout.log_shard, outcome.removed[0].digest)
            return bool(sizes_at(log.store, shard.keys[0]))
    except MalformedRecordError:
        pass  # the dry run of a revert names it
    return True


def _no_revert(turn: Turn, last: int, replaced_by: int) -> str:
    if turn.verdict != "published":
        return "it is not decided" if turn.verdict is None else "it published nothing"
    if turn.turn == last:
        return "its files are live"
    if replaced_by:
        return f"files that turn {replaced_by} replaced are gone, or neither history rule nor tag keeps them"
    return ""
