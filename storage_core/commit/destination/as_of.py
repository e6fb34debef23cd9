"""Read a destination as of a turn, a time or a tag; refuse a turn whose files are gone.

Source: tables, "Reading as of a turn".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.destination.tags import find_tag
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.stores import Store

AsOf = int | str | datetime
"""A turn; a time, as a `datetime` or in ISO 8601; or a tag. A time without a zone is in UTC."""

LOOKED_UP: Final = 1000
"""Files that are looked up one by one; more of them are found in one listing."""


def check_as_of(as_of: object, zone: str = "UTC") -> AsOf:
    """Return a turn, a time or a tag as an `int`, a `datetime` with a zone, or a `str`.

    Args:
        as_of: One of these, or a text that a turn or a time is written as.
        zone: Time zone of a time without one.

    Raises:
        InvalidInputError: It is none of them, or there is no such zone.
    """
    if isinstance(as_of, str) and as_of[:1].isdecimal():
        with suppress(ValueError):
            as_of = int(as_of) if as_of.isdecimal() else datetime.fromisoformat(as_of)
    if isinstance(as_of, datetime):
        try:
            return as_of if as_of.tzinfo else as_of.replace(tzinfo=ZoneInfo(zone))
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidInputError(f"time zone {zone!r} is not known") from None
    if type(as_of) is int and as_of >= 0:
        return as_of
    if isinstance(as_of, str) and as_of[:1].isalpha():
        return as_of
    raise InvalidInputError(
        f"as_of={as_of!r}: must be the number of a turn, 0 or greater; a time, such as "
        "2026-11-29T12:00+01:00; or the name of a tag, which begins with a letter"
    )


def turn_as_of(log: DestinationLog, as_of: AsOf) -> int:
    """Return the turn that a reader means.

    Raises:
        InvalidInputError: No turn was decided by that time, there is no such tag, or it is none of the three.
    """
    wanted = check_as_of(as_of)
    if isinstance(wanted, int):
        return wanted  # the fold of the log checks it
    if isinstance(wanted, str):
        return find_tag(log.store, wanted).turn
    turn = log.turn_at(wanted.timestamp())
    first = None if turn else log.outcome(1)
    if turn:
        return turn
    began = "" if first is None else f"; turn 1 was decided at {datetime.fromtimestamp(first.decided_s, UTC)}"
    raise InvalidInputError(
        f"as_of={wanted}: no turn of {log.store.url} was decided by then{began}; name a later time or a turn"
    )


def manifest_as_of(log: DestinationLog, as_of: AsOf | None = None) -> Manifest:
    """Return the live files after a turn; all of them existed a moment ago.

    Args:
        log: Log of the destination.
        as_of: A turn, a time or a tag; the last turn by default, whose files are not looked up.

    Raises:
        InvalidInputError: See `turn_as_of`; or files of the turn are gone. The message names the first turn
            after it that can be read.
        MalformedLogError: An outcome or a list of files is invalid.
    """
    if as_of is None:
        return log.manifest()
    turn = turn_as_of(log, as_of)
    with step("as of"):
        found = log.manifest(turn)
        live = log.manifest().files
        gone = gone_files(log, found, live)
        if not gone:
            return found
        raise InvalidInputError(
            f"as_of={as_of}: {len(gone)} of {len(found.files)} files of turn {turn} of {log.store.url} are "
            f"gone, such as {min(gone)}: later jobs replaced them; the first turn after it that can be read "
            f"is {_first_readable(log, turn, gone, live)}"
        )


def gone_files(log: DestinationLog, found: Manifest, live: Mapping[str, LiveFile]) -> set[str]:
    """Return the keys of a manifest's files that were replaced since, and deleted or overwritten.

    Args:
        log: Log of the destination.
        found: The manifest.
        live: Files that are live now.
    """
    replaced = {key for key, file in found.files.items() if live.get(key) != file}
    return (replaced & live.keys()) | _absent(log, replaced - live.keys())


def _absent(log: DestinationLog, keys: Iterable[str]) -> set[str]:
    """Return those of some keys that have no object."""
    absent = set(keys)
    if len(absent) > LOOKED_UP:
        return absent.difference(info.key for info in visible_files(log.store))
    found = in_parallel(partial(_existing, log.store), list(absent), log.at_once, log.at_once)
    return absent.difference(filter(None, found))


def _existing(store: Store, key: str) -> str | None:
    try:
        store.head(key)
    except ObjectNotFoundError:
        return None
    return key


def _first_readable(log: DestinationLog, turn: int, gone: Iterable[str], live: Mapping[str, LiveFile]) -> int:
    """Return the first turn after one, with these files gone, of which all files are there."""
    there = {info.key for info in visible_files(log.store)}
    missing = set(gone)
    for outcome in log.outcomes(turn):
        added, removed = log.changes(outcome)
        missing -= removed | added.keys()
        missing.update(key for key, file in added.items() if key not in there or live.get(key, file) != file)
        turn = outcome.turn
        if not missing:
            break
    return turn
