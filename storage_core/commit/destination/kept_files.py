"""Which replaced files are kept for readers of earlier turns, by the history rule and tags, and where.

A kept file lies at `_lockgate/kept/<key>`, where no program lists it. With a rule that keeps files in place
it stays at its key, and an empty object at that place tells the sweep of it.

Source: tables, "Reading as of a turn".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import last_decided
from lockgate.storage_core.commit.destination.tags import tags
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.create_if_absent import find
from lockgate.storage_core.commit.records.log_records import ExpiredFiles, HistoryRule, LiveFile
from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.protocol import PAGE, in_pages

MAX_EXPIRED: Final = 50_000
"""Limit of the expired files that a sweep stores for the next one; it stores others later."""


def history_rule(store: Store) -> HistoryRule | None:
    """Return the history rule of a destination; None if it has none.

    Raises:
        MalformedRecordError: The record is invalid.
    """
    return find(store, HistoryRule, layout.HISTORY_RULE)


def rule_or_longest(store: Store) -> HistoryRule | None:
    """Return the history rule; if it cannot be read, one that keeps files: the sweep deletes none then."""
    try:
        with step("history rule"):
            return history_rule(store)
    except MalformedRecordError:
        return HistoryRule(keep_s=0, keep_turns=0)


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


def place_of(file: LiveFile, sizes: Mapping[str, int]) -> str | None:
    """Return the key at which a replaced file can be read, by the sizes of objects; None if it is gone."""
    return next((key for key in (file.key, layout.kept(file.key)) if sizes.get(key) == file.size), None)


def sizes_at(store: Store, key: str) -> dict[str, int]:
    """Return the sizes of the objects at the key of a file and at the place where it is kept."""
    sizes: dict[str, int] = {}
    # In this order, for a file that is moved meanwhile is at the second one.
    for place in (key, layout.kept(key)):
        with suppress(ObjectNotFoundError):
            sizes[place] = store.head(place).size
            break
    return sizes


def all_sizes(store: Store) -> dict[str, int]:
    """Return the sizes of all data files and all kept files by key."""
    sizes = {info.key: info.size for info in visible_files(store)}
    sizes.update((info.key, info.size) for page in store.pages(layout.KEPT) for info in page)
    return sizes


def get_published(store: Store, key: str, *, start: int = 0, length: int | None = None) -> bytes:
    """Return bytes of a file that was live when the reader began, also if it was moved since.

    Raises:
        ObjectNotFoundError: It is gone.
    """
    try:
        return store.get(key, start=start, length=length)
    except ObjectNotFoundError:
        with suppress(ObjectNotFoundError):
            return store.get(layout.kept(key), start=start, length=length)
        raise


class SweptHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep does with the kept files that no kept turn has.

    Attributes:
        expired: Number of files that it deletes.
        waiting: Number of files that a later sweep deletes, if nothing needs them by then.
        undeleted: Number of files of which the store refuses the deletion; the next sweep tries again.
        first_turn: First turn that the rule keeps.
        example: Key of one that it deletes.
    """

    expired: int = 0
    waiting: int = 0
    undeleted: int = 0
    first_turn: int = 0
    example: str = ""

    def lines(self) -> Iterator[str]:
        """Yield this as text for people."""
        if self.expired:
            yield (
                f"replaced files that no kept turn has: delete {self.expired}, such as {self.example}; turns "
                f"before {self.first_turn} that have them cannot be read from then on"
            )
        if self.undeleted:
            yield f"replaced files that no kept turn has: the store refuses to delete {self.undeleted}"
        if self.waiting:
            yield f"replaced files that no kept turn has: a later sweep deletes {self.waiting}"


def sweep_history(log: DestinationLog, grace_s: float, now_s: float, *, dry_run: bool) -> SweptHistory:
    """Delete the kept files that no kept turn has.

    A file is deleted by the second sweep that finds it so, at least `grace_s` after the first one, so that
    what names it again meanwhile has time to be published.

    Raises:
        MalformedRecordError: The rule, a tag or the list of the sweep before cannot be read; nothing was
            deleted.
        MalformedLogError: The log cannot be read; nothing was deleted.
    """
    store = log.store
    with step("sweep history"):
        listed = [info.key.removeprefix(layout.KEPT) for page in store.pages(layout.KEPT) for info in page]
        before = find(store, ExpiredFiles, layout.EXPIRED) or ExpiredFiles(seen={})
        seen: dict[str, float] = {}
        first, expired, undeleted = 0, list[str](), set[str]()
        if listed:
            rule = history_rule(store)
            kept = kept_keys(log, rule, now_s)
            first = 0 if rule is None else first_kept(log, rule, now_s)
            seen = {key: before.seen.get(key, now_s) for key in listed if key not in kept}
            expired = [key for key, first_s in seen.items() if now_s - first_s >= grace_s]
        if not dry_run:
            for page in in_pages(expired, PAGE):
                # The place last: it tells the next sweep of a file that is left at its key.
                left = {failure.key for failure in store.delete_many(page)}
                places = [layout.kept(key) for key in page if key not in left]
                left.update(failure.key.removeprefix(layout.KEPT) for failure in store.delete_many(places))
                undeleted |= left
            for key in set(expired) - undeleted:
                del seen[key]
            if seen != before.seen:
                oldest = sorted(seen.items(), key=lambda each: each[1])
                store.put(layout.EXPIRED, encode(ExpiredFiles(seen=dict(islice(oldest, MAX_EXPIRED)))))
    return SweptHistory(
        expired=len(expired) - len(undeleted),
        waiting=len(seen.keys() - set(expired)),
        undeleted=len(undeleted),
        first_turn=first,
        example=min(expired, default=""),
    )
