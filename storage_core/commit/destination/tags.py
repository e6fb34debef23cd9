"""Tags of a destination: names for turns, each created if absent."""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim, find, read
from lockgate.storage_core.commit.records.log_records import Tag
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.stores import Store


def find_tag(store: Store, name: str) -> Tag:
    """Read a tag.

    Raises:
        InvalidInputError: There is no such tag, or a tag cannot have this name.
        MalformedRecordError: Its record is invalid.
    """
    found = find(store, Tag, layout.tag(name))
    if found is None:
        raise InvalidInputError(f"{store.url} has no tag {name!r}; `lockgate tag {store.url}` lists its tags")
    return found


def tags(store: Store, at_once: int = 1) -> Iterator[Tag]:
    """Yield the tags of a destination by name; read so many of them at a time."""
    for page in store.pages(layout.TAGS):
        yield from in_order(lambda info: read(store, Tag, info.key), page, at_once)


def create_tag(log: DestinationLog, name: str, turn: int, clock: Clock) -> Tag:
    """Name a turn, unless another has the name; idempotent.

    Raises:
        InvalidInputError: The log has no such turn with an outcome, or a tag cannot have this name.
        ConflictError: The name belongs to another turn.
        OutcomeUnknownError: It is not known whether the tag was created; try again.
    """
    key = layout.tag(name)
    if turn < 1 or log.outcome(turn) is None:
        raise InvalidInputError(f"turn {turn} of {log.store.url} has no outcome; nothing was tagged")
    stored = claim(log.store, key, Tag(name=name, turn=turn, created_s=clock.now_s()))
    if stored.turn != turn:
        raise ConflictError(
            f"tag {name!r} of {log.store.url} is turn {stored.turn} already, not {turn}; nothing was "
            "changed; use another name, or delete that tag first"
        )
    return stored


def delete_tag(store: Store, name: str) -> None:
    """Delete a tag; the turn stays in the log. Files that only the tag kept may be deleted from now on."""
    store.delete(layout.tag(name))
