"""Check the records of a destination's log: every claim, outcome, checkpoint, and list of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import read
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.log_records import (
    KeyShard,
    LiveShard,
    LogCheckpoint,
    Outcome,
    TurnClaim,
)
from lockgate.storage_core.commit.records.shards import ShardRef, read_shard
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import LockgateError, MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store

READS_AT_ONCE: Final = 8
NO_LISTS: Final[tuple[ShardRef, ...]] = ()


class LogFault(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the log that readers need and cannot read.

    Attributes:
        key: Key of the record; a list of files is named by its digest.
        entry: Key of the claim, outcome or checkpoint that it is, or that names the list.
        turn: Turn that the record belongs to.
        fault: What is wrong with it.
    """

    key: str
    entry: str
    turn: int
    fault: str


def check_log(store: Store) -> list[LogFault]:
    """Return the records of a destination's log that cannot be read, in the order of their turns."""
    with step("check-log"):
        present = set(_names(store))
        highest = max((turn for turn, kind in present if kind != "checkpoint"), default=0)
        wanted = {(turn, "turn") for turn in range(1, highest + 1)}
        wanted |= {(turn, "json") for turn in range(1, highest)}
        # The highest turn has no outcome while its job commits.
        if (highest, "turn") in present and _has_published(store, highest):
            wanted.add((highest, "json"))
        faults = in_order(partial(_faults_of, store), sorted(wanted | present), READS_AT_ONCE)
        return [fault for found in faults for fault in found]


def _names(store: Store) -> Iterator[tuple[int, str]]:
    for page in store.pages(layout.LOG):
        for info in page:
            entry = layout.parse_log_key(info.key)
            if entry is not None:
                yield entry


def _has_published(store: Store, turn: int) -> bool:
    """Return whether the job of a turn has a receipt of it."""
    try:
        folder = JobFolder(store, read(store, TurnClaim, layout.turn_claim(turn)).job_id)
        success, _ = folder.ended()
    except MalformedRecordError:
        return False
    return success is not None and success.receipt is not None and success.receipt.turn == turn


def _faults_of(store: Store, name: tuple[int, str]) -> list[LogFault]:
    turn, kind = name
    key = f"{layout.LOG}{turn:08d}.{kind}"
    try:
        if kind == "turn":
            read(store, TurnClaim, key)
            return []
        if kind == "checkpoint":
            checkpoint = read(store, LogCheckpoint, key)
            recorded, live, removed = checkpoint.turn, checkpoint.live, NO_LISTS
        else:
            outcome = read(store, Outcome, key)
            recorded, live, removed = outcome.turn, outcome.added, outcome.removed
    except (MalformedRecordError, ObjectNotFoundError) as error:
        return [LogFault(key=key, entry=key, turn=turn, fault=str(error))]
    if recorded != turn:
        return [LogFault(key=key, entry=key, turn=turn, fault=f"{key}: field turn is {recorded}")]
    bad = [*_unreadable(store, LiveShard, live), *_unreadable(store, KeyShard, removed)]
    return [LogFault(key=list_key, entry=key, turn=turn, fault=str(error)) for list_key, error in bad]


def _unreadable(
    store: Store, kind: type[LiveShard] | type[KeyShard], refs: Iterable[ShardRef]
) -> Iterator[tuple[str, LockgateError]]:
    """Yield the keys of the lists that cannot be read, and why."""
    for ref in refs:
        try:
            read_shard(store, kind, layout.log_shard, ref.digest)
        except (MalformedRecordError, ObjectNotFoundError) as error:
            yield layout.log_shard(ref.digest), error
