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

import msgspec

from lockgate.storage_core.commit.destination.kept_files import all_sizes, place_of, sizes_at
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.destination.tags import find_tag
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.failpoints import step

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
    """Return the live files after a turn; all of them existed a moment ago, at `Manifest.path`.

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
        places = places_of(log, found, live)
        gone = {key for key, place in places.items() if place is None}
        if not gone:
            return msgspec.structs.replace(found, kept=_kept(places))
        raise InvalidInputError(
            f"as_of={as_of}: {len(gone)} of {len(found.files)} files of turn {turn} of {log.store.url} are "
            f"gone, such as {min(gone)}: later jobs replaced them; the first turn after it that can be read "
            f"is {_first_readable(log, turn, gone, live)}"
        )


def changes_between(log: DestinationLog, after: AsOf, until: AsOf | None) -> Manifest:
    """Return the files that jobs have added after one turn, up to another, none of which removed any rows.

    Raises:
        InvalidInputError: See `turn_as_of`; or a job has removed rows in between, or a file is gone.
        MalformedLogError: An outcome or a list of files is invalid.
    """
    first, last = turn_as_of(log, after), log.manifest(None if until is None else turn_as_of(log, until))
    if first > last.turn:
        raise InvalidInputError(f"turn {first} of {log.store.url} is after turn {last.turn}")
    files: dict[str, LiveFile] = {}
    for outcome in log.outcomes(first):
        if outcome.turn > last.turn:
            break
        if outcome.receipt is not None and outcome.receipt.mode == "compact":
            continue  # the same rows in other files
        added, removed = log.changes(outcome)
        if removed:
            raise InvalidInputError(
                f"turn {outcome.turn} of {log.store.url}, job {outcome.job_id}, has removed {len(removed)} "
                f"files: what changed after turn {first} is more than new rows; read the whole destination, "
                f"and begin again after turn {last.turn}"
            )
        files.update(added)
    found = msgspec.structs.replace(last, files=files)
    places = places_of(log, found, log.manifest().files)
    gone = {key for key, place in places.items() if place is None}
    if gone:
        raise InvalidInputError(
            f"{len(gone)} of {len(files)} files that were added to {log.store.url} after turn {first} are "
            f"gone, such as {min(gone)}: later jobs replaced them; read the whole destination, and begin "
            f"again after turn {last.turn}"
        )
    return msgspec.structs.replace(found, kept=_kept(places))


def _kept(places: Mapping[str, str | None]) -> frozenset[str]:
    return frozenset(key for key, place in places.items() if place != key)


def places_of(log: DestinationLog, found: Manifest, live: Mapping[str, LiveFile]) -> dict[str, str | None]:
    """Return where a manifest's files are that were replaced since, by key; None for those that are gone.

    Args:
        log: Log of the destination.
        found: The manifest.
        live: Files that are live now.
    """
    replaced = [file for key, file in found.files.items() if live.get(key) != file]
    if len(replaced) > LOOKED_UP:
        sizes = all_sizes(log.store)
    else:
        keys = [file.key for file in replaced]
        looked_up = in_parallel(partial(sizes_at, log.store), keys, log.at_once, log.at_once)
        sizes = {place: size for each in looked_up for place, size in each.items()}
    return {file.key: None if file.key in live else place_of(file, sizes) for file in replaced}


def _first_readable(log: DestinationLog, turn: int, gone: Iterable[str], live: Mapping[str, LiveFile]) -> int:
    """Return the first turn after one, with these files gone, of which all files are there."""
    sizes, missing = all_sizes(log.store), set(gone)
    for outcome in log.outcomes(turn):
        added, removed = log.changes(outcome)
        missing -= removed | added.keys()
        missing.update(
            key for key, file in added.items() if live.get(key, file) != file or place_of(file, sizes) is None
        )
        turn = outcome.turn
        if not missing:
            break
    return turn
