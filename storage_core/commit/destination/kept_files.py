"""Which replaced files are kept for readers of earlier turns, by a destination's history rule and its tags.

Kept files stay at their keys, so only a destination whose readers all follow the log has such a rule.

Source: tables, "Reading as of a turn".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Final

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import last_decided
from lockgate.storage_core.commit.destination.tags import tags
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.log_records import ExpiredFiles, HistoryRule
from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store

MAX_EXPIRED: Final = 50_000
"""Limit of the expired files that a sweep stores for the next one; it stores others later."""


def history_rule(store: Store) -> HistoryRule | None:
    """Return the history rule of a destination; None if it has none.

    Raises:
        MalformedRecordError: The record is invalid.
    """
    return find(store, HistoryRule, layout.HISTORY_RULE)


def keeps_history(store: Store) -> bool:
    """Return whether replaced files are left to the sweep, also if the rule itself cannot be read."""
    try:
        with step("history rule"):
            return history_rule(store) is not None
    except MalformedRecordError:
        return True


def set_history_rule(store: Store, rule: HistoryRule) -> None:
    """Replace the history rule of a destination."""
    store.put(layout.HISTORY_RULE, encode(rule))


def first_kept(log: DestinationLog, rule: HistoryRule, now_s: float) -> int:
    """Return the first turn that a rule keeps with all after it; tags may keep earlier ones."""
    return max(0, min(last_decided(log) - rule.keep_turns, log.turn_at(now_s - rule.keep_s)))


def kept_keys(log: DestinationLog, rule: HistoryRule | None, now_s: float) -> set[str]:
    """Return the keys of files that are live, or that a turn has which the rule or a tag keeps.

    Raises:
        MalformedLogError: An outcome or a list of files is invalid.
        MalformedRecordError: A tag is invalid.
    """
    if rule is None:
        return set(log.manifest().files)
    # Before the log: a turn that is tagged later is in the log by then.
    tagged = {tag.turn for tag in tags(log.store)}
    first = first_kept(log, rule, now_s)
    keys = set(log.manifest(first).files)
    for outcome in log.outcomes(first):
        keys.update(log.changes(outcome)[0])
    for turn in tagged:
        if turn < first:
            keys.update(log.manifest(turn).files)
    return keys


@dataclass
class RetainedFiles:
    """The replaced files that a sweep finds, and which of them it may delete.

    A file is deleted by the second sweep that finds that no kept turn has it, so that what names it again
    meanwhile has time to be published.

    Attributes:
        log: Log of the destination.
        grace_s: Least time between these two sweeps; without a history rule, the first one deletes.
        now_s: Time of this sweep.
    """

    log: DestinationLog
    grace_s: float
    now_s: float
    _found: dict[str, float] = field(default_factory=dict)

    def expired(self, keys: Iterable[str]) -> tuple[set[str], set[str]]:
        """Return those of some replaced files that may be deleted now, and those that may not."""
        keys = set(keys)
        unneeded = keys - self._kept if keys else keys
        if self._rule is None:
            return unneeded, keys - unneeded
        since_s = {key: self._before.seen.get(key, self.now_s) for key in unneeded}
        expired = {key for key, first_s in since_s.items() if self.now_s - first_s >= self.grace_s}
        self._found.update(since_s)
        return expired, keys - expired

    def store_expired(self) -> None:
        """Store what this sweep found, for the next one."""
        if self._found != self._before.seen:
            seen = dict(islice(sorted(self._found.items(), key=lambda each: each[1]), MAX_EXPIRED))
            self.log.store.put(layout.EXPIRED, encode(ExpiredFiles(seen=seen)))

    @cached_property
    def _rule(self) -> HistoryRule | None:
        return history_rule(self.log.store)

    @cached_property
    def _before(self) -> ExpiredFiles:
        return find(self.log.store, ExpiredFiles, layout.EXPIRED) or ExpiredFiles(seen={})

    @cached_property
    def _kept(self) -> set[str]:
        return kept_keys(self.log, self._rule, self.now_s)
